"""The names that users import from ``octavo``; adding or removing one is a decision."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import octavo

PUBLIC = [
    "LLM",
    "CompletionOutput",
    "EngineConfig",
    "Logprob",
    "OctavoError",
    "RequestMetrics",
    "RequestOutput",
    "SamplingParams",
]


def test_all_is_exactly_the_public_names_in_order() -> None:
    assert octavo.__all__ == PUBLIC
    assert octavo.__all__ == sorted(PUBLIC, key=lambda name: (not name.isupper(), name))  # as ruff sorts them


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_a_class_of_that_name(name: str) -> None:
    assert getattr(octavo, name).__name__ == name


def test_dir_lists_the_public_names_and_the_version() -> None:
    assert dir(octavo) == sorted([*PUBLIC, "__version__"])


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'octavo' has no attribute 'Engine'"):
        octavo.Engine  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Engine'"):
        exec("from octavo import Engine")


def test_the_version_is_that_of_the_distribution() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    assert octavo.__version__ == project["version"]


def test_importing_octavo_is_fast() -> None:
    """The bound is 100 ms of the processor; the best of several tries, so that a busy machine does not decide."""
    code = "import time; start = time.process_time(); import octavo; print(time.process_time() - start)"
    times = [float(subprocess.check_output([sys.executable, "-c", code], text=True)) for _ in range(5)]
    assert min(times) < 0.1
