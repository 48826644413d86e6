"""What sampling means, by literal numbers: the reference backend defines it, and ``op_suite`` holds others to that."""

from __future__ import annotations

import numpy as np
import pytest
from support.op_inputs import float32, int32, sampling_batch

from octavo.backends.reference import ReferenceBackend
from octavo.errors import BackendError

BACKEND = ReferenceBackend()


def logits_of(*probabilities: float) -> np.ndarray:
    return np.log(np.array([probabilities])).astype(np.float32)


def numbers(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def possible_tokens(logits: np.ndarray, **features: object) -> dict[int, float]:
    """Token → share of 1,000 evenly spaced draws."""
    draws = (np.arange(1000) + 0.5) / 1000
    repeated = {name: np.repeat(value, 1000) for name, value in features.items()}  # type: ignore[call-overload]
    batch = sampling_batch(1000, uniform=draws.astype(np.float32), **repeated)
    token_ids, counts = np.unique(BACKEND.sample(np.repeat(logits, 1000, axis=0), batch).token_ids, return_counts=True)
    return {int(token): count / 1000 for token, count in zip(token_ids, counts, strict=True)}


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    batch = sampling_batch(2, temperature=numbers(0, 0))
    logits = np.array([[1, 3, 3, 2], [-5, -5, -5, -5]], np.float32)
    assert BACKEND.sample(logits, batch).token_ids.tolist() == [1, 0]


def test_draws_follow_the_probabilities_in_id_order() -> None:
    logits = logits_of(0.5, 0.3, 0.2)
    assert possible_tokens(logits) == {0: 0.5, 1: 0.3, 2: 0.2}
    batch = sampling_batch(4, uniform=numbers(0.0, 0.499, 0.501, 0.999))
    assert BACKEND.sample(np.repeat(logits, 4, axis=0), batch).token_ids.tolist() == [0, 0, 1, 2]


def test_temperature_divides_the_logits() -> None:
    # 0.8 and 0.2 at temperature 1/2 are as their squares, 16 to 1
    assert possible_tokens(logits_of(0.8, 0.2), temperature=numbers(0.5)) == {0: 0.941, 1: 0.059}


def test_top_k_keeps_exactly_k_and_prefers_low_ids_among_equals() -> None:
    assert possible_tokens(logits_of(0.25, 0.25, 0.25, 0.25), top_k=int32([2])) == {0: 0.5, 1: 0.5}
    assert possible_tokens(logits_of(0.1, 0.2, 0.3, 0.4), top_k=int32([1])) == {3: 1.0}
    assert len(possible_tokens(logits_of(0.1, 0.2, 0.3, 0.4), top_k=int32([0]))) == 4


def test_top_p_keeps_the_token_that_reaches_it() -> None:
    logits = logits_of(0.2, 0.5, 0.3)
    assert set(possible_tokens(logits, top_p=numbers(0.4))) == {1}
    assert set(possible_tokens(logits, top_p=numbers(0.6))) == {1, 2}
    assert set(possible_tokens(logits, top_p=numbers(0.9))) == {0, 1, 2}
    assert set(possible_tokens(logits, top_p=numbers(1e-6))) == {1}


def test_top_p_is_a_share_of_what_top_k_has_left() -> None:
    # Of 0.4, 0.3 (0.2, 0.1 dropped) the first is 0.57 > 0.5.
    assert set(possible_tokens(logits_of(0.4, 0.3, 0.2, 0.1), top_k=int32([2]), top_p=numbers(0.5))) == {0}
    assert set(possible_tokens(logits_of(0.4, 0.3, 0.2, 0.1), top_p=numbers(0.5))) == {0, 1}


def test_min_p_compares_with_the_most_likely() -> None:
    assert set(possible_tokens(logits_of(0.5, 0.3, 0.15, 0.05), min_p=numbers(0.25))) == {0, 1, 2}
    assert set(possible_tokens(logits_of(0.5, 0.3, 0.15, 0.05), min_p=numbers(1.0))) == {0}


def penalized_choice(logits: list[float], **features: object) -> int:
    """The greedy choice when token 0 was generated twice and token 1 stood in the prompt."""
    history = {"history_starts": int32([0, 2]), "history_token_ids": int32([0, 1]), "history_counts": int32([2, 0])}
    batch = sampling_batch(1, temperature=numbers(0), **history, **features)
    return int(BACKEND.sample(np.array([logits], np.float32), batch).token_ids[0])


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits() -> None:
    assert penalized_choice([2.0, 1.9, 1.1], repetition_penalty=numbers(2.0)) == 2  # 1, 0.95, 1.1
    assert penalized_choice([2.4, 1.9, 1.1], repetition_penalty=numbers(2.0)) == 0  # 1.2, 0.95, 1.1
    assert penalized_choice([-1.0, -1.1, -1.9], repetition_penalty=numbers(2.0)) == 2  # -2, -2.2, -1.9


def test_presence_and_frequency_penalties_count_generated_tokens_only() -> None:
    assert penalized_choice([2.0, 1.5, 0.0], presence_penalty=numbers(0.4)) == 0  # 1.6, 1.5
    assert penalized_choice([2.0, 1.5, 0.0], presence_penalty=numbers(0.6)) == 1  # 1.4, 1.5
    assert penalized_choice([2.0, 1.5, 0.0], frequency_penalty=numbers(0.2)) == 0  # 1.6, 1.5
    assert penalized_choice([2.0, 1.5, 0.0], frequency_penalty=numbers(0.3)) == 1  # 1.4, 1.5


def test_bias_is_added_and_minus_infinity_bans() -> None:
    def choice(*values: float) -> int:
        bias = {"bias_starts": int32([0, 2]), "bias_token_ids": int32([0, 2]), "bias_values": numbers(*values)}
        batch = sampling_batch(1, temperature=numbers(0), **bias)
        return int(BACKEND.sample(np.array([[3.0, 2.0, 1.0]], np.float32), batch).token_ids[0])

    assert choice(0.0, 0.0) == 0
    assert choice(-1.5, 0.0) == 1
    assert choice(-np.inf, 4.0) == 2


def test_logprobs_are_those_of_the_raw_logits() -> None:
    bias = {"bias_starts": int32([0, 1]), "bias_token_ids": int32([2]), "bias_values": numbers(9)}
    batch = sampling_batch(1, temperature=numbers(0), num_logprobs=2, **bias)
    output = BACKEND.sample(logits_of(0.5, 0.3, 0.2), batch)
    assert output.token_ids.tolist() == [2]
    assert output.ranks is not None
    assert output.ranks.tolist() == [3]
    assert output.logprob_token_ids is not None
    assert output.logprob_token_ids.tolist() == [[2, 0, 1]]
    np.testing.assert_allclose(output.logprobs, np.log([[0.2, 0.5, 0.3]]), rtol=1e-6)


@pytest.mark.parametrize("damage", [np.nan, np.inf])
def test_damaged_logits_are_refused(damage: float) -> None:
    logits = float32(np.random.default_rng(0), 3, 10)
    logits[1, 4] = damage
    with pytest.raises(BackendError, match=f"largest logit of row 1 is {damage}"):
        BACKEND.sample(logits, sampling_batch(3))
    with pytest.raises(BackendError, match=f"largest logit of row 1 is {damage}"):
        BACKEND.logprobs(logits, int32([0, 0, 0]), 0)


def test_banning_every_token_is_refused() -> None:
    bias = {"bias_starts": int32([0, 2]), "bias_token_ids": int32([0, 1]), "bias_values": numbers(-np.inf, -np.inf)}
    with pytest.raises(BackendError, match="logit_bias bans them all"):
        BACKEND.sample(logits_of(0.5, 0.5), sampling_batch(1, **bias))
