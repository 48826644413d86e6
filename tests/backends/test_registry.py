"""Backends by name."""

from __future__ import annotations

import sys

import pytest

from octavo.backends.registry import create_backend
from octavo.config import BackendConfig
from octavo.errors import BackendError, ConfigError


@pytest.mark.parametrize("name, expected", [("reference", "reference"), ("native", "native"), ("auto", "native")])
def test_a_name_leads_to_its_backend(name: str, expected: str) -> None:
    backend = create_backend(BackendConfig(backend=name))
    assert (backend.name, backend.device) == (expected, "cpu")


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="must be auto, native, torch, reference, not onnx"):
        create_backend(BackendConfig(backend="onnx"))


@pytest.mark.parametrize("name", ["native", "auto", "reference"])
def test_cpu_backends_refuse_a_gpu(name: str) -> None:
    with pytest.raises(ConfigError, match="runs on the CPU, not on cuda; backend torch runs there"):
        create_backend(BackendConfig(backend=name, device="cuda"))


def test_threads_are_for_native_only() -> None:
    assert create_backend(BackendConfig(backend="native", num_threads=1)).name == "native"
    with pytest.raises(ConfigError, match="num_threads is for the native backend"):
        create_backend(BackendConfig(backend="reference", num_threads=1))


def test_torch_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # makes `import torch` fail
    with pytest.raises(BackendError, match=r"pip install octavo\[torch\]"):
        create_backend(BackendConfig(backend="torch"))


def test_other_backends_do_not_import_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert create_backend(BackendConfig(backend="reference")).name == "reference"
