"""How fast the simulator is: requests of a trace's shape on many replicas, CPU seconds of one core.

    python benchmarks/simulator_speed.py traces/conversation_trace.jsonl.gz --requests 1000000

It prints progress as it goes, so a shorter run can be read as a rate; peak memory is that of the whole process.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import resource
import time
from collections.abc import Iterator

from octavo.config import SchedulerConfig
from octavo.kvcache.policies.registry import POLICY_NAMES
from octavo.simulator.cost_model import RooflineCostModel
from octavo.simulator.hardware import PROFILES
from octavo.simulator.model_shape import KNOWN_SHAPES
from octavo.simulator.recorder import ServiceLevel
from octavo.simulator.report import format_report, make_report
from octavo.simulator.router import ROUTERS
from octavo.simulator.simulation import Deployment, kv_cache_bytes
from octavo.simulator.workload import WorkloadRequest, scale_rate
from octavo.simulator.workload_source import open_workload, overlay


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--copies", type=int, default=84, help="of the trace, at once; 84 make a million requests")
    parser.add_argument("--requests", type=int, default=1_000_000, help="stop after so many have arrived")
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--router", choices=ROUTERS, default="prefix-aware")
    parser.add_argument("--policy", choices=POLICY_NAMES, default="lru")
    parser.add_argument("--block-size", type=int, default=512)
    parser.add_argument("--rate-scale", type=float, default=1.0)
    arguments = parser.parse_args()

    model, hardware = KNOWN_SHAPES["llama-3.1-8b"], PROFILES["h200"]
    deployment = Deployment(
        model=model,
        cost=RooflineCostModel(model, hardware),
        kv_cache_bytes=kv_cache_bytes(model, hardware.memory_bytes),
        block_size=arguments.block_size,
        scheduler=SchedulerConfig(max_num_batched_tokens=8192, max_num_seqs=256),
        max_model_len=model.max_position_embeddings,
        eviction_policy=arguments.policy,
        router=arguments.router,
        service_level=ServiceLevel(2.0, 0.05),
    )
    base = list(scale_rate(open_workload(arguments.trace), arguments.rate_scale))
    fleet = deployment.fleet(arguments.replicas)
    gc.disable()  # as octavo simulate does
    start_s = time.process_time()
    fleet.run(counted(itertools.islice(overlay(base, arguments.copies), arguments.requests), start_s))
    elapsed_s = time.process_time() - start_s
    each_us = 1e6 * elapsed_s / arguments.requests
    print(f"{arguments.requests:,} requests in {elapsed_s:,.1f} CPU s: {each_us:,.0f} µs each")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:,.2f} GiB\n")
    print(format_report(make_report(fleet)))


def counted(requests: Iterator[WorkloadRequest], start_s: float) -> Iterator[WorkloadRequest]:
    for number, request in enumerate(requests):
        if number and number % 20_000 == 0:
            print(f"{number:9,} arrived, {time.process_time() - start_s:7.1f} CPU s", flush=True)
        yield request


if __name__ == "__main__":
    main()
