"""What a machine can do: peak numbers from data sheets, and the share of them that an engine reaches.

Peaks (dense bfloat16, no sparsity; memory bandwidth; memory) are the makers' own: NVIDIA's data sheets of H100 SXM
(989 TFLOP/s, 3.35 TB/s, 80 GB), H200 SXM (989, 4.8, 141), A100 SXM 80 GB (312, 2.04, 80) and L40S (362, 0.864, 48).

The shares are assumptions, not data: 60 % of the operations in large matrix products, 80 % of the bandwidth while
weights or KV stream, 40 % of the operations in attention, and a fixed time per step for launches, sampling and the
host. They are of the size that tuned engines report; measure your own machine where a few percent matter
(``octavo simulate --calibrate``).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareProfile:
    """One replica's accelerator.

    Attributes:
        flops: peak operations per second.
        bandwidth: peak bytes per second between memory and cores.
        memory_bytes: for weights, KV cache and everything else.
        flops_share, bandwidth_share, attention_share: of the peaks, that matrix products, streaming, and the
            operations of attention reach.
        step_s: fixed time of a step.
        layer_s: fixed time of a layer in a step.
    """

    name: str
    flops: float
    bandwidth: float
    memory_bytes: float
    flops_share: float = 0.6
    bandwidth_share: float = 0.8
    attention_share: float = 0.4
    step_s: float = 1e-3
    layer_s: float = 10e-6


PROFILES = {
    profile.name: profile
    for profile in (
        HardwareProfile(name="h100", flops=989e12, bandwidth=3.35e12, memory_bytes=80e9),
        HardwareProfile(name="h200", flops=989e12, bandwidth=4.8e12, memory_bytes=141e9),
        HardwareProfile(name="a100", flops=312e12, bandwidth=2.04e12, memory_bytes=80e9),
        HardwareProfile(name="l40s", flops=362e12, bandwidth=0.864e12, memory_bytes=48e9),
    )
}
"""By name."""
