"""The native backend: C++ kernels on the CPU. Importing this package loads nothing heavy."""

from __future__ import annotations

from octavo.backends.native.cpu_plan import CpuPlan, cpu_plan

__all__ = ["CpuPlan", "cpu_plan"]
