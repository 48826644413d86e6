"""``octavo serve`` with little patience: ``python impatient_server.py --port 0 --model …``."""

from __future__ import annotations

import sys

from octavo.config import EngineConfig
from octavo.server.serve import run_server
from octavo.server.settings import ServerSettings

MAX_CONNECTIONS = 20
TIMEOUT_S = 1.0

if __name__ == "__main__":
    run_server(
        EngineConfig(model=sys.argv[sys.argv.index("--model") + 1]),
        ServerSettings(
            port=0,
            max_connections=MAX_CONNECTIONS,
            head_timeout_s=TIMEOUT_S,
            body_timeout_s=TIMEOUT_S,
            send_timeout_s=TIMEOUT_S,
        ),
        on_ready=lambda url: print(f"octavo serves {url}/v1", file=sys.stderr, flush=True),
    )
