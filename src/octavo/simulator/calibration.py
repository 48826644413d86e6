"""A cost model fitted to measured steps of a real engine.

The time of a step is taken as a sum of non-negative parts::

    seconds = dense(num_tokens) + a · num_samples + b · num_context + c · num_pairs

``dense`` is linear between knots, so that the shape (flat while weights stream, steps of the kernels' tiles, straight
where arithmetic decides) need not be known. All times at knots and a, b, c come from one non-negative fit of relative
errors: of their absolute values, not their squares, so that steps that something else disturbed do not count more than
others. That is least squares again and again, each error weighted by the inverse of what it was the time before.
"""

from __future__ import annotations

import json
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from octavo.errors import ConfigError
from octavo.scheduler.output import SchedulerOutput
from octavo.simulator.cost_model import num_pairs
from octavo.simulator.model_shape import ModelShape

KNOTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
MIN_STEPS_PER_KNOT = 3
MAX_SWEEPS = 20_000
TOLERANCE = 1e-12
NUM_REWEIGHTINGS = 12
SMALLEST_ERROR = 0.01
"""Relative errors below this weigh alike."""


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """What a step did and how long it took.

    Attributes:
        num_context: tokens in the contexts of all decodes.
        num_pairs: (query, key) pairs of all chunks.
    """

    num_tokens: int
    num_samples: int
    num_context: int
    num_pairs: float
    seconds: float

    @classmethod
    def of(cls, scheduled: SchedulerOutput, seconds: float) -> MeasuredStep:
        """The step, before the scheduler takes in its outcome."""
        return cls(
            num_tokens=scheduled.num_tokens,
            num_samples=len(scheduled.sampling_requests),
            num_context=sum(request.num_tokens for request in scheduled.decodes),
            num_pairs=sum(num_pairs(chunk.start, chunk.num_tokens) for chunk in scheduled.chunks),
            seconds=seconds,
        )


@dataclass(frozen=True, slots=True)
class MeasuredCostModel:
    """A :class:`~octavo.simulator.cost_model.CostModel` of one model on one machine.

    Attributes:
        knots, knot_s: numbers of tokens, and the time of everything but attention and sampling there.
        sample_s, context_token_s, pair_s: per sampled row, per token of a decode's context, per pair of a chunk.
    """

    knots: tuple[int, ...]
    knot_s: tuple[float, ...]
    sample_s: float
    context_token_s: float
    pair_s: float

    def dense_s(self, num_tokens: int, num_samples: int) -> float:
        """Between the knots, and beyond the last one as between the last two."""
        shares = _hat(self.knots, num_tokens)
        return self.sample_s * num_samples + sum(share * self.knot_s[at] for at, share in shares)

    def chunk_attention_s(self, start: int, num_tokens: int) -> float:
        """By the number of pairs."""
        return self.pair_s * num_pairs(start, num_tokens)

    def predict(self, step: MeasuredStep) -> float:
        """Seconds that the model expects of a measured step."""
        return (
            self.dense_s(step.num_tokens, step.num_samples)
            + self.context_token_s * step.num_context
            + self.pair_s * step.num_pairs
        )


def fit(steps: Sequence[MeasuredStep]) -> MeasuredCostModel:
    """The model with the least sum of relative errors. Raises :class:`ConfigError` for too few steps."""
    largest = max((step.num_tokens for step in steps), default=0)
    knots = tuple(knot for knot in KNOTS if knot <= largest)
    knots = tuple(knot for knot in knots if _num_near(steps, knot) >= MIN_STEPS_PER_KNOT)
    if len(knots) < 2:
        raise ConfigError(f"{len(steps)} measured steps are too few to fit a cost model; measure more sizes")
    rows: list[list[float]] = []
    for step in steps:
        row = [0.0] * len(knots) + [step.num_samples, step.num_context, step.num_pairs]
        for at, share in _hat(knots, step.num_tokens):
            row[at] = share
        rows.append([value / step.seconds for value in row])
    weights = [1.0] * len(rows)
    for _ in range(NUM_REWEIGHTINGS):
        weighted = [[weight * value for value in row] for row, weight in zip(rows, weights, strict=True)]
        *knot_s, sample_s, context_token_s, pair_s = non_negative_least_squares(weighted, weights)
        model = MeasuredCostModel(knots, tuple(knot_s), sample_s, context_token_s, pair_s)
        errors = [abs(model.predict(step) / step.seconds - 1) for step in steps]
        weights = [max(error, SMALLEST_ERROR) ** -0.5 for error in errors]
    return model


def median_error(model: MeasuredCostModel, steps: Iterable[MeasuredStep]) -> float:
    """Median of |predicted - measured| / measured."""
    return statistics.median(abs(model.predict(step) - step.seconds) / step.seconds for step in steps)


def non_negative_least_squares(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float]:
    """The ``x >= 0`` that minimises ``|rows · x - targets|²``, by cyclic coordinate descent on the normal equations.

    Each coordinate in turn takes its best non-negative value while the others stand still; for a convex quadratic with
    bounds this converges to the optimum (Franc, Hlaváč and Navara, CAIP 2005). Columns are scaled to length one first.
    """
    width = len(rows[0])
    scale = [max(sum(row[i] ** 2 for row in rows) ** 0.5, 1e-300) for i in range(width)]
    gram = [[sum(row[i] * row[j] for row in rows) / scale[i] / scale[j] for j in range(width)] for i in range(width)]
    right = [sum(row[i] * target for row, target in zip(rows, targets, strict=True)) / scale[i] for i in range(width)]
    x = [0.0] * width
    for _ in range(MAX_SWEEPS):
        change = 0.0
        for i in range(width):
            if gram[i][i] == 0:
                continue
            slope = sum(g * value for g, value in zip(gram[i], x, strict=True)) - right[i]
            new = max(x[i] - slope / gram[i][i], 0.0)
            change = max(change, abs(new - x[i]))
            x[i] = new
        if change < TOLERANCE:
            break
    return [value / s for value, s in zip(x, scale, strict=True)]


# ---- the file -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MeasuredProfile:
    """A calibrated machine, as ``octavo simulate --calibrate`` saves it.

    Attributes:
        machine: where it was measured, for people.
        memory_bytes: for weights and KV cache.
        median_error: of the steps that the model was not fitted to.
    """

    machine: str
    memory_bytes: float
    model: ModelShape
    cost: MeasuredCostModel
    median_error: float

    def save(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> MeasuredProfile:
        """Raises :class:`ConfigError` if it is no such file."""
        try:
            data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            cost: dict[str, Any] = data.pop("cost")
            cost |= {key: tuple(cost[key]) for key in ("knots", "knot_s")}
            return cls(cost=MeasuredCostModel(**cost), model=ModelShape(**data.pop("model")), **data)
        except (OSError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path} is no profile of octavo simulate --calibrate: {error}") from error


# ---- parts ----------------------------------------------------------------------------------------------------------


def _hat(knots: Sequence[int], num_tokens: int) -> list[tuple[int, float]]:
    """Shares of two neighbouring knots that make up ``num_tokens``; below the first knot it counts alone."""
    if num_tokens <= knots[0]:
        return [(0, 1.0)]
    at = min(bisect_right(knots, num_tokens), len(knots) - 1)
    share = (num_tokens - knots[at - 1]) / (knots[at] - knots[at - 1])
    return [(at - 1, 1 - share), (at, share)]


def _num_near(steps: Sequence[MeasuredStep], knot: int) -> int:
    """Steps nearer to the knot than to the ones beside it, on a logarithmic scale."""
    return sum(knot / 2**0.5 <= step.num_tokens < knot * 2**0.5 for step in steps)
