"""What the native backend decided about this machine, for people to read."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["CpuPlan", "cpu_plan"]


@dataclass(frozen=True, slots=True)
class CpuPlan:
    """How many threads run which instruction set, and why.

    Attributes:
        num_threads: threads that compute.
        threads_reason: why so many.
        cores_online: cores of the machine.
        cores_affinity: cores that the scheduler may put this process on.
        quota_cores: CPU time per wall time that the control groups allow; ``None``: no limit.
        isa: instruction set of the kernels: ``amx``, ``avx512``, ``avx2`` or ``scalar``.
        isa_reason: why that one.
        available_isas: all that the machine has, the best last.
    """

    num_threads: int
    threads_reason: str
    cores_online: int
    cores_affinity: int
    quota_cores: float | None
    isa: str
    isa_reason: str
    available_isas: tuple[str, ...]


def cpu_plan() -> CpuPlan:
    """Look at the machine.

    Raises:
        BackendError: ``OCTAVO_ISA`` asks for an instruction set that it does not have.
    """
    from octavo.backends.native import _native

    budget = _native.cpu_budget()
    isa = _native.choose_isa()
    forced = bool(os.environ.get("OCTAVO_ISA"))
    return CpuPlan(
        num_threads=budget.num_threads,
        threads_reason=budget.reason,
        cores_online=budget.cores_online,
        cores_affinity=budget.cores_affinity,
        quota_cores=budget.quota_cores or None,
        isa=isa,
        isa_reason="OCTAVO_ISA" if forced else "the best that this machine has",
        available_isas=tuple(_native.available_isas()),
    )
