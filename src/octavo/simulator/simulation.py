"""What is simulated: a model on a machine, an engine's settings, a router and what users expect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from octavo.config import SchedulerConfig
from octavo.errors import ConfigError
from octavo.kvcache.policies.registry import POLICY_NAMES
from octavo.simulator.cost_model import CostModel
from octavo.simulator.fleet import Fleet
from octavo.simulator.model_shape import ModelShape
from octavo.simulator.plan import Trial, smallest_fleet
from octavo.simulator.recorder import ServiceLevel
from octavo.simulator.replica import ReplicaConfig
from octavo.simulator.router import create_router
from octavo.simulator.workload import WorkloadRequest

MEMORY_SHARE = 0.9
"""Of a machine's memory that weights and KV cache may fill; the rest is for activations and the driver."""


def kv_cache_bytes(model: ModelShape, memory_bytes: float) -> float:
    """What is left for the KV cache. Raises :class:`ConfigError` if the weights alone are too much."""
    left = MEMORY_SHARE * memory_bytes - model.weight_bytes
    if left <= 0:
        raise ConfigError(
            f"{model.name} has {model.weight_bytes / 1e9:,.1f} GB of weights and a replica has "
            f"{memory_bytes / 1e9:,.1f} GB of memory; take a smaller model or a larger machine"
        )
    return left


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One replica's settings, and what is asked of the fleet."""

    model: ModelShape
    cost: CostModel
    kv_cache_bytes: float
    block_size: int
    scheduler: SchedulerConfig
    max_model_len: int
    eviction_policy: str
    router: str
    service_level: ServiceLevel

    def __post_init__(self) -> None:
        if self.eviction_policy not in POLICY_NAMES:
            raise ConfigError(f"eviction_policy must be one of {', '.join(POLICY_NAMES)}, not {self.eviction_policy}")

    @property
    def num_blocks(self) -> int:
        """Blocks in a replica's pool. Raises :class:`ConfigError` if there is not even one."""
        num_blocks = int(self.kv_cache_bytes / (self.block_size * self.model.kv_bytes_per_token))
        if num_blocks < 1:
            raise ConfigError(f"a KV cache of {self.kv_cache_bytes:,.0f} bytes has no room for one block")
        return num_blocks

    def fleet(self, num_replicas: int) -> Fleet:
        """A fresh fleet, with cold caches."""
        config = ReplicaConfig(
            num_blocks=self.num_blocks,
            block_size=self.block_size,
            scheduler=self.scheduler,
            max_model_len=self.max_model_len,
            eviction_policy=self.eviction_policy,
        )
        router = create_router(self.router, num_replicas, self.num_blocks * self.block_size)
        return Fleet(num_replicas, config, self.cost, router, self.service_level)


def plan_fleet(
    deployment: Deployment,
    workload: Sequence[WorkloadRequest],
    share: float,
    on_trial: Callable[[Trial], None] = lambda _: None,
) -> tuple[int, Fleet]:
    """The smallest fleet that serves ``share`` of the requests as expected, and that fleet after its run.

    Raises:
        ConfigError: no fleet can.
    """
    max_missed = (1 - share) * len(workload)
    found: list[Fleet] = []  # those that were enough, ever smaller

    def try_fleet(num_replicas: int) -> Trial:
        fleet = deployment.fleet(num_replicas)
        fleet.run(workload, max_missed=max_missed)
        num_missed = fleet.recorder.num_missed + len(fleet.recorder.refused)
        if num_missed > max_missed:
            return Trial(num_replicas, None, False)
        found[:] = [fleet]
        return Trial(num_replicas, 1 - num_missed / max(len(workload), 1), True)

    num_replicas = smallest_fleet(try_fleet, on_trial)
    return num_replicas, found[0]
