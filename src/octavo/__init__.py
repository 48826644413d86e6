"""Octavo: an LLM inference engine around a paged KV cache.

>>> from octavo import LLM, SamplingParams
>>> llm = LLM()
>>> llm.generate("The capital of France is", SamplingParams(temperature=0))[0].outputs[0].text
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.config import EngineConfig
    from octavo.engine.llm import LLM
    from octavo.errors import OctavoError
    from octavo.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput
    from octavo.sampling_params import SamplingParams

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "CompletionOutput",
    "EngineConfig",
    "Logprob",
    "OctavoError",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
]

_HOME = {
    "LLM": "octavo.engine.llm",
    "CompletionOutput": "octavo.outputs",
    "EngineConfig": "octavo.config",
    "Logprob": "octavo.outputs",
    "OctavoError": "octavo.errors",
    "RequestMetrics": "octavo.outputs",
    "RequestOutput": "octavo.outputs",
    "SamplingParams": "octavo.sampling_params",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``import octavo`` stays fast."""
    if name not in _HOME:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
