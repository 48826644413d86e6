"""``octavo serve`` over :mod:`support.poisoned_engine`: ``python poisonable_server.py --port 0 --model …``."""

from __future__ import annotations

import sys
from pathlib import Path

from octavo.config import EngineConfig
from octavo.server.serve import run_server
from octavo.server.settings import ServerSettings

if __name__ == "__main__":
    model = sys.argv[sys.argv.index("--model") + 1]
    engine = (sys.executable, str(Path(__file__).parent / "poisoned_engine.py"))
    run_server(
        EngineConfig(model=model),
        ServerSettings(port=0, model_names=("tiny",)),
        engine,
        on_ready=lambda url: print(f"octavo serves {url}/v1", file=sys.stderr, flush=True),
    )
