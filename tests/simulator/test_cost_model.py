"""Step times by hand, on a machine and a model with round numbers."""

from __future__ import annotations

import pytest

from octavo.request import Request
from octavo.sampling_params import SamplingParams
from octavo.scheduler.output import Chunk, SchedulerOutput
from octavo.simulator.cost_model import RooflineCostModel, num_pairs, step_s
from octavo.simulator.hardware import PROFILES, HardwareProfile
from octavo.simulator.model_shape import KNOWN_SHAPES, ModelShape

MODEL = ModelShape(
    name="round",
    num_layers=10,
    hidden_size=100,
    intermediate_size=300,
    num_heads=4,
    num_kv_heads=1,
    head_dim=20,
    vocab_size=1000,
    max_position_embeddings=4096,
)
MACHINE = HardwareProfile(
    name="round", flops=1e9, bandwidth=1e8, memory_bytes=1e9, flops_share=1.0, bandwidth_share=1.0,
    attention_share=1.0, step_s=0.5, layer_s=0.01,
)  # fmt: skip


def make_request(num_computed: int, num_tokens: int) -> Request:
    request = Request("r", range(num_tokens), SamplingParams())
    request.num_computed_tokens = num_computed
    return request


def test_sizes_of_a_shape() -> None:
    assert MODEL.num_layer_weights == 10 * (2 * 100 * 20 * 5 + 3 * 100 * 300) == 1_100_000
    assert MODEL.num_head_weights == 100_000
    assert MODEL.weight_bytes == 2 * (1_100_000 + 200_000)
    assert MODEL.kv_bytes_per_token == 2 * 10 * 20 * 2
    assert MODEL.attention_flops_per_pair == 4 * 10 * 80


@pytest.mark.parametrize(
    "name, parameters, kv_bytes",
    [
        ("llama-3.1-8b", 8.03e9, 131072),
        ("llama-3.2-1b", 1.236e9, 32768),
        ("qwen2.5-7b", 7.62e9, 57344),
        ("qwen3-32b", 32.76e9, 262144),
        ("mistral-7b", 7.25e9, 131072),
        ("smollm2-135m", 134.5e6, 23040),
    ],
)
def test_known_shapes_have_the_published_number_of_parameters(name: str, parameters: float, kv_bytes: int) -> None:
    shape = KNOWN_SHAPES[name]
    assert shape.weight_bytes / 2 == pytest.approx(parameters, rel=0.003)
    assert shape.kv_bytes_per_token == kv_bytes


def test_pairs_of_a_causal_chunk() -> None:
    assert num_pairs(0, 1) == 1
    assert num_pairs(3, 2) == 4 + 5
    assert num_pairs(0, 100) == sum(range(1, 101))


def test_a_small_decode_streams_weights_and_kv() -> None:
    cost = RooflineCostModel(MODEL, MACHINE)
    scheduled = SchedulerOutput(1, [make_request(99, 100), make_request(49, 50)])
    weights_s = 2 * (1_100_000 + 100_000) / 1e8
    kv_s = 150 * 800 / 1e8
    assert step_s(cost, scheduled) == pytest.approx(0.5 + 10 * 0.01 + weights_s + kv_s)


def test_a_large_chunk_is_bound_by_operations() -> None:
    cost = RooflineCostModel(MODEL, MACHINE)
    request = make_request(500, 2000)
    scheduled = SchedulerOutput(1, [], [Chunk(request, 500, 1000, samples=False)])
    operations = 1000 * 2 * 1_100_000 + 3200 * num_pairs(500, 1000)
    assert step_s(cost, scheduled) == pytest.approx(0.6 + operations / 1e9)  # nothing is sampled: no output matrix


def test_a_sampling_chunk_reads_the_output_matrix_once() -> None:
    cost = RooflineCostModel(MODEL, MACHINE)
    assert cost.dense_s(1000, 1) - cost.dense_s(1000, 0) == pytest.approx(200_000 / 1e8)
    assert cost.dense_s(1000, 100) - cost.dense_s(1000, 0) == pytest.approx(100 * 200_000 / 1e9)


def test_published_decode_speed_of_an_8b_model_on_an_h100() -> None:
    """About 7 ms per token at batch one is what tuned engines report; a profile far from it is a typing mistake."""
    cost = RooflineCostModel(KNOWN_SHAPES["llama-3.1-8b"], PROFILES["h100"])
    assert 0.005 < cost.dense_s(1, 1) < 0.010
