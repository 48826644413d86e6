"""Fitting step times: known ones are found again, and the fit is the optimum."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest

from octavo.errors import ConfigError
from octavo.simulator.calibration import (
    MeasuredCostModel,
    MeasuredProfile,
    MeasuredStep,
    fit,
    median_error,
    non_negative_least_squares,
)
from octavo.simulator.model_shape import KNOWN_SHAPES

TRUTH = MeasuredCostModel((1, 16, 64, 256, 1024), (0.004, 0.005, 0.012, 0.040, 0.150), 2e-5, 3e-8, 4e-9)


def make_steps(seed: int, num_steps: int, noise: float) -> list[MeasuredStep]:
    draw = random.Random(seed)
    steps = []
    for _ in range(num_steps):
        num_decodes, num_prefill = draw.choice((0, 1, 2, 5, 16, 60)), draw.choice((0, 0, 10, 50, 120, 300, 900))
        shape = MeasuredStep(
            num_tokens=max(num_decodes + num_prefill, 1),
            num_samples=num_decodes + (num_prefill > 0),
            num_context=num_decodes * draw.randint(10, 2000),
            num_pairs=num_prefill * draw.randint(1, 2000),
            seconds=1.0,
        )
        seconds = TRUTH.predict(shape) * draw.lognormvariate(0, noise)
        steps.append(MeasuredStep(shape.num_tokens, shape.num_samples, shape.num_context, shape.num_pairs, seconds))
    return steps


def test_true_times_are_found_again() -> None:
    found = fit(make_steps(1, 400, noise=0.0))
    assert median_error(found, make_steps(2, 200, noise=0.0)) < 0.02
    assert found.context_token_s == pytest.approx(TRUTH.context_token_s, rel=0.05)
    assert found.pair_s == pytest.approx(TRUTH.pair_s, rel=0.05)


def test_noise_averages_out() -> None:
    assert median_error(fit(make_steps(3, 400, noise=0.1)), make_steps(4, 200, noise=0.0)) < 0.05


def test_disturbed_steps_do_not_count() -> None:
    """Every fifth step took three times as long, because something else ran."""
    steps = [
        MeasuredStep(s.num_tokens, s.num_samples, s.num_context, s.num_pairs, s.seconds * (3 if number % 5 == 0 else 1))
        for number, s in enumerate(make_steps(6, 400, noise=0.02))
    ]
    assert median_error(fit(steps), make_steps(7, 200, noise=0.0)) < 0.03


def test_between_and_beyond_the_knots() -> None:
    assert TRUTH.dense_s(1, 0) == 0.004
    assert TRUTH.dense_s(40, 0) == pytest.approx((0.005 + 0.012) / 2)
    assert TRUTH.dense_s(1792, 0) == pytest.approx(0.150 + 0.110)  # as steep as from 256 to 1024
    assert TRUTH.dense_s(1, 10) == pytest.approx(0.0042)


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 measured steps are too few"):
        fit(make_steps(5, 2, noise=0.0))


@pytest.mark.parametrize("seed", range(10))
def test_least_squares_is_the_best_over_all_active_sets(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows, targets = draw.normal(size=(12, 4)), draw.normal(size=12)
    best = np.sum(targets**2)
    for size in range(1, 5):
        for columns in itertools.combinations(range(4), size):
            x, *_ = np.linalg.lstsq(rows[:, columns], targets, rcond=None)
            if (x >= 0).all():
                best = min(best, np.sum((rows[:, columns] @ x - targets) ** 2))
    found = np.array(non_negative_least_squares(rows.tolist(), targets.tolist()))
    assert (found >= 0).all()
    assert np.sum((rows @ found - targets) ** 2) == pytest.approx(best, rel=1e-9)


def test_a_profile_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    profile = MeasuredProfile("a machine", 8e9, KNOWN_SHAPES["smollm2-135m"], TRUTH, 0.05)
    profile.save(tmp_path / "cpu.json")
    assert MeasuredProfile.load(tmp_path / "cpu.json") == profile


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"cost": {"knots": 1}})])
def test_other_files_are_no_profiles(tmp_path: Path, text: str) -> None:
    (tmp_path / "cpu.json").write_text(text)
    with pytest.raises(ConfigError, match=r"cpu\.json is no profile of octavo simulate --calibrate"):
        MeasuredProfile.load(tmp_path / "cpu.json")
