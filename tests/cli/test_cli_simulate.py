"""``octavo simulate`` from the outside."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import pytest

from octavo.cli import calibrate
from octavo.cli.main import build_parser, main
from octavo.cli.simulate import find_model, make_deployment
from octavo.simulator.calibration import MeasuredCostModel, MeasuredProfile
from octavo.simulator.model_shape import KNOWN_SHAPES

SMALL = "chat:users=300,duration_s=90"
CONFIG = Path(__file__).parents[1] / "golden" / "models" / "llama" / "config.json"


def simulate(*arguments: str) -> int:
    return main(["simulate", *arguments])


def test_a_report_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(SMALL, "--replicas", "2") == 0
    text = capsys.readouterr().out
    for part in ("requests on 2 replicas", "time to first token", "goodput", "prefix cache", "KV occupancy"):
        assert part in text


def test_json_has_every_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(SMALL, "--json", "--router", "round-robin", "--slo-ttft", "1.5") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["num_replicas"] == 1
    assert report["num_refused"] == 0
    assert 0 < report["ttft_s"]["p50"] < report["ttft_s"]["p99"] < report["e2e_s"]["p99"]
    assert 0.3 < report["hit_rate"] < 1
    assert report["goodput_share"] == 1.0
    assert report["service_level"] == {"ttft_s": 1.5, "tpot_s": 0.05}
    assert len(report["timeline"]["occupancy"]) == len(report["timeline"]["waiting"])


def test_the_same_command_prints_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    simulate(SMALL, "--json")
    first = capsys.readouterr().out
    simulate(SMALL, "--json")
    assert capsys.readouterr().out == first


def test_an_int8_cache_holds_nearly_twice_the_tokens() -> None:
    def num_blocks(*arguments: str) -> int:
        return make_deployment(build_parser().parse_args(["simulate", SMALL, *arguments])).num_blocks

    ratio = num_blocks("--kv-cache-dtype", "int8") / num_blocks()
    assert ratio == pytest.approx(2 * 128 / (128 + 4), rel=1e-4)


def test_a_plan_tells_what_it_tried(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(SMALL, "--plan", "--model", "qwen3-32b", "--slo-tpot", "0.2") == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("smallest fleet: 1\n")
    assert "1 replicas: 100.00% as expected" in printed.err


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((), "say which workload"),
        (("nowhere.jsonl",), "there is no trace file nowhere.jsonl"),
        ((SMALL, "--hardware", "abacus"), "--hardware must be h100, h200, a100, l40s, cpu or a file from --calibrate"),
        ((SMALL, "--router", "random"), "router must be one of"),
        ((SMALL, "--eviction-policy", "mru"), "eviction_policy must be one of lru, "),
        ((SMALL, "--replicas", "0"), "--replicas must be positive, not 0"),
        ((SMALL, "--slo-share", "1.5"), "--slo-share must be above 0 and at most 1"),
        ((SMALL, "--model", "qwen3-32b", "--hardware", "l40s"), "take a smaller model or a larger machine"),
        ((SMALL, "--kv-cache-gib", "0.000001"), "has no room for one block"),
        ((SMALL, "--max-num-seqs", "4096"), "must not exceed max_num_batched_tokens"),
    ],
)
def test_what_cannot_be_simulated_is_one_line(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.count("\n") == 1


def test_a_shape_comes_from_a_config_file() -> None:
    shape = find_model(str(CONFIG))
    assert (shape.num_layers, shape.hidden_size, shape.num_kv_heads, shape.head_dim) == (2, 64, 1, 32)
    assert shape.bytes_per_weight == 2.0


def test_a_plot_without_matplotlib_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert simulate(SMALL, "--plot", str(tmp_path / "x.png")) == 2
    printed = capsys.readouterr()
    assert printed.out == ""  # before the run, not after it
    assert "install octavo[plot]" in printed.err


def test_options_have_the_defaults_that_help_names() -> None:
    arguments = build_parser().parse_args(["simulate", SMALL])
    assert isinstance(arguments, argparse.Namespace)
    assert (arguments.hardware, arguments.router, arguments.block_size) == ("h200", "prefix-aware", 64)


def test_this_cpu_is_measured_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second time, and from then on, the figures of the first are taken; on another machine they are not."""
    asked: list[str] = []

    def measure(model: str, num_rounds: int) -> calibrate.Calibration:
        asked.append(model)
        cost = MeasuredCostModel((1, 64), (0.01, 0.02), 1e-5, 1e-8, 1e-9)
        return calibrate.Calibration(
            MeasuredProfile(calibrate.this_machine(), 8e9, KNOWN_SHAPES["smollm2-135m"], cost, 0.05), [], []
        )

    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path))
    monkeypatch.setattr(calibrate, "measure", measure)
    command = ("poisson:rate=1,duration_s=20,prompt_tokens=50,output_tokens=5", "--hardware", "cpu", "--json")
    assert simulate(*command) == 0
    first = capsys.readouterr()
    assert "cpu: measuring steps of default" in first.err
    assert "median error 5.0%" in first.err
    assert json.loads(first.out)["ttft_s"]["p50"] >= 0.01
    assert simulate(*command) == 0
    second = capsys.readouterr()
    assert "as measured before" in second.err
    assert second.out == first.out
    monkeypatch.setattr(calibrate, "this_machine", lambda: "another one")
    assert simulate(*command) == 0
    assert asked == ["default", "default"]
