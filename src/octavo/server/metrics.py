"""``/metrics``: what happens, for Prometheus. ``docs/metrics.md`` explains each."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from octavo.engine.async_engine import AsyncEngine
from octavo.engine.engine_observer import EngineObserver
from octavo.engine.messages import EngineStats
from octavo.outputs import RequestOutput

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LATENCY_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)
_GAP_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)

_ENGINE_COUNTERS = {
    "num_steps": ("octavo_engine_steps", "Steps"),
    "num_preemptions": ("octavo_preemptions", "Requests that gave their blocks back to be computed again"),
    "num_prompt_tokens": ("octavo_prompt_tokens", "Prompt tokens of requests that have started"),
    "num_cached_tokens": ("octavo_prompt_tokens_cached", "Prompt tokens that came from the prefix cache"),
    "num_computed_tokens": ("octavo_computed_tokens", "Tokens that went through the model"),
    "num_recomputed_tokens": ("octavo_recomputed_tokens", "Tokens that went through it again after a preemption"),
    "num_evictions": ("octavo_kv_cache_evictions", "Cached blocks that were given up for others"),
    "num_breaches": ("octavo_kv_cache_breaches", "Faults in the accounts of the KV cache, found and healed"),
}


class ServerMetrics(EngineObserver):
    """All metrics of one server."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._registry = registry = CollectorRegistry()
        self._seen = dict.fromkeys(_ENGINE_COUNTERS, 0)  # of the engine's present process
        self._counters = {
            name: Counter(metric, text, registry=registry) for name, (metric, text) in _ENGINE_COUNTERS.items()
        }
        self._requests = Gauge("octavo_requests", "Requests under way", ["state"], registry=registry)
        self._requests.labels("running").set_function(lambda: engine.num_running)
        self._requests.labels("waiting").set_function(lambda: engine.num_waiting)
        self._finished = Counter(
            "octavo_requests_finished", "Requests by how they ended", ["reason"], registry=registry
        )
        for reason in ("stop", "length", "timeout", "abort", "error"):
            self._finished.labels(reason)
        self._generated = Counter("octavo_generated_tokens", "Tokens of finished requests", registry=registry)
        self._blocks = Gauge("octavo_kv_cache_blocks", "Blocks of the KV cache", ["state"], registry=registry)
        self._blocks.labels("free").set(engine.ready.num_blocks)
        self._restarts = Counter(
            "octavo_engine_restarts", "Engine processes that were started to replace another", registry=registry
        )
        Gauge("octavo_engine_up", "Whether there is an engine", registry=registry).set_function(
            lambda: engine.pid is not None
        )
        self._step = Histogram("octavo_step_seconds", "Steps", registry=registry, buckets=_GAP_BUCKETS_S)
        self._gap = Histogram(
            "octavo_inter_token_seconds", "From token to token of a stream", registry=registry, buckets=_GAP_BUCKETS_S
        )
        self._ttft, self._queue, self._e2e = (
            Histogram(f"octavo_{name}_seconds", text, registry=registry, buckets=_LATENCY_BUCKETS_S)
            for name, text in (
                ("time_to_first_token", "From a request's arrival to its first token"),
                ("queue", "From a request's arrival to its first step"),
                ("request", "From a request's arrival to its last token"),
            )
        )

    def text(self) -> bytes:
        """In Prometheus's format."""
        return generate_latest(self._registry)

    def stats(self, stats: EngineStats) -> None:
        """Counters of the engine's process go on where those of the one before ended."""
        for name, counter in self._counters.items():
            value = getattr(stats, name)
            if value != self._seen[name]:
                counter.inc(value - self._seen[name])
                self._seen[name] = value
        self._blocks.labels("held").set(stats.num_blocks_held)
        self._blocks.labels("cached").set(stats.num_blocks_cached)
        self._blocks.labels("free").set(self._engine.ready.num_blocks - stats.num_blocks_held - stats.num_blocks_cached)

    def stepped(self, step_s: float, gaps_s: list[float]) -> None:
        """A step took so long; those that got a token had waited so long since their last one."""
        self._step.observe(step_s)
        for gap_s in gaps_s:
            self._gap.observe(gap_s)

    def finished(self, output: RequestOutput) -> None:
        """A request has ended by itself."""
        self._finished.labels(output.outputs[0].finish_reason).inc()
        num_tokens = sum(len(sample.token_ids) for sample in output.outputs)
        self._generated.inc(num_tokens)
        self._queue.observe(output.metrics.queue_s)
        if num_tokens:
            self._ttft.observe(output.metrics.ttft_s)
            self._e2e.observe(output.metrics.e2e_s)

    def aborted(self) -> None:
        """A caller has left."""
        self._finished.labels("abort").inc()

    def failed(self) -> None:
        """A request was given up."""
        self._finished.labels("error").inc()

    def restarted(self) -> None:
        """An engine process has died: its counters start again."""
        self._restarts.inc()
        self._seen = dict.fromkeys(_ENGINE_COUNTERS, 0)
        for state, value in (("held", 0), ("cached", 0), ("free", self._engine.ready.num_blocks)):
            self._blocks.labels(state).set(value)
