"""The native backend: C++ kernels on the CPU. Its parts are imported when they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from octavo.backends.native.cpu_plan import CpuPlan, cpu_plan

if TYPE_CHECKING:
    from octavo.backends.native.backend import NativeBackend

__all__ = ["CpuPlan", "NativeBackend", "cpu_plan"]


def __getattr__(name: str) -> Any:
    if name == "NativeBackend":
        from octavo.backends.native.backend import NativeBackend

        return NativeBackend
    raise AttributeError(name)
