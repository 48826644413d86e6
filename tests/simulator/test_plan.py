"""The smallest fleet."""

from __future__ import annotations

import pytest

from octavo.config import SchedulerConfig
from octavo.errors import ConfigError
from octavo.simulator.cost_model import RooflineCostModel
from octavo.simulator.generators import poisson
from octavo.simulator.hardware import PROFILES
from octavo.simulator.model_shape import KNOWN_SHAPES
from octavo.simulator.plan import Trial, smallest_fleet
from octavo.simulator.recorder import ServiceLevel
from octavo.simulator.report import format_report, make_report
from octavo.simulator.simulation import Deployment, kv_cache_bytes, plan_fleet


@pytest.mark.parametrize("needed", [1, 2, 3, 7, 8, 9, 100])
def test_bisection_finds_the_first_that_is_enough(needed: int) -> None:
    tried: list[int] = []
    found = smallest_fleet(lambda n: Trial(n, None, n >= needed), lambda trial: tried.append(trial.num_replicas))
    assert found == needed
    assert len(tried) == len(set(tried)) <= 2 * needed.bit_length() + 2


def test_a_level_that_no_fleet_meets_is_an_error() -> None:
    with pytest.raises(ConfigError, match="even 4096 replicas miss the service level"):
        smallest_fleet(lambda n: Trial(n, None, False))


def make_deployment(tpot_s: float) -> Deployment:
    model = KNOWN_SHAPES["qwen3-32b"]
    return Deployment(
        model=model,
        cost=RooflineCostModel(model, PROFILES["h200"]),
        kv_cache_bytes=kv_cache_bytes(model, PROFILES["h200"].memory_bytes),
        block_size=128,
        scheduler=SchedulerConfig(max_num_batched_tokens=1024, max_num_seqs=64),
        max_model_len=32768,
        eviction_policy="lru",
        router="least-loaded",
        service_level=ServiceLevel(1.0, tpot_s),
    )


def test_one_replica_less_is_not_enough() -> None:
    deployment, workload = make_deployment(0.04), list(poisson(4.0, 60.0, seed=3))
    num_replicas, fleet = plan_fleet(deployment, workload, 0.9)
    report = make_report(fleet)
    assert num_replicas == report.num_replicas >= 2
    assert report.goodput_share >= 0.9
    assert report.num_requests == len(workload)
    smaller = deployment.fleet(num_replicas - 1)
    smaller.run(workload)
    assert make_report(smaller).goodput_share < 0.9
    assert f"{len(workload):,} requests on {num_replicas} replicas" in format_report(report)


def test_weights_that_do_not_fit_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"qwen3-32b has 65\.5 GB of weights and a replica has 48\.0 GB"):
        kv_cache_bytes(KNOWN_SHAPES["qwen3-32b"], PROFILES["l40s"].memory_bytes)
