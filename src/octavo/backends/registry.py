"""From a backend's name to the backend. Each is imported when it is asked for, and knows nothing of the others."""

from __future__ import annotations

from octavo.backends.base import Backend
from octavo.config import BackendConfig
from octavo.errors import BackendError, ConfigError

BACKEND_NAMES = ("native", "torch", "reference")


def create_backend(config: BackendConfig) -> Backend:
    """The backend that ``config`` names; ``auto`` is native.

    Raises:
        ConfigError: the name is unknown, or the backend does not run on that device.
        BackendError: the backend is not installed, or this machine lacks what it needs.
    """
    name = "native" if config.backend == "auto" else config.backend
    if name not in BACKEND_NAMES:
        raise ConfigError(f"backend must be auto, {', '.join(BACKEND_NAMES)}, not {config.backend}")
    if name != "torch" and config.device not in ("auto", "cpu"):
        raise ConfigError(f"the {name} backend runs on the CPU, not on {config.device}; backend torch runs there")
    if name != "native" and config.num_threads is not None:
        raise ConfigError(f"num_threads is for the native backend; the {name} backend decides for itself")

    if name == "native":
        from octavo.backends.native import NativeBackend

        return NativeBackend(num_threads=config.num_threads)
    if name == "torch":
        return _create_torch_backend(config.device)
    from octavo.backends.reference import ReferenceBackend

    return ReferenceBackend()


def _create_torch_backend(device: str) -> Backend:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise BackendError("backend torch needs PyTorch: pip install octavo[torch]") from error
    from octavo.backends.torch import TorchBackend

    return TorchBackend(device)
