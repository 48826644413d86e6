"""Who may import whom, read from the source: arrows point down only.

errors config sampling_params outputs namespace request
  ← kvcache ← scheduler ← executor.interface ← engine.core          pure: the standard library only
  ← executor (where scheduling meets arrays) ← engine ← server ← cli

models, weights → backends.base;  backends.registry → each backend;  no backend → another
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"

FOUNDATION = {
    f"octavo.{name}" for name in ("config", "errors", "metrics", "namespace", "outputs", "request", "sampling_params")
}
CORE = FOUNDATION | {"octavo.kvcache", "octavo.scheduler", "octavo.executor.interface"}
BACKEND_CONTRACT = {f"octavo.backends.{name}" for name in ("base", "dequantize", "host_memory", "host_tensor")}
BACKENDS = {"octavo.backends.native", "octavo.backends.reference", "octavo.backends.torch"}
ENGINE = CORE | {
    "octavo.backends.base",
    "octavo.backends.registry",
    "octavo.engine",
    "octavo.executor",
    "octavo.models",
    "octavo.tokenization",
    "octavo.weights",
}

MAY_IMPORT: dict[str, set[str]] = {
    "octavo": FOUNDATION | {"octavo.engine"},
    "octavo.__main__": {"octavo.cli"},
    **dict.fromkeys(FOUNDATION, FOUNDATION),
    "octavo.kvcache": FOUNDATION | {"octavo.kvcache"},
    "octavo.scheduler": FOUNDATION | {"octavo.kvcache", "octavo.scheduler"},
    "octavo.executor.interface": FOUNDATION | {"octavo.scheduler"},
    "octavo.engine.core": CORE,
    "octavo.simulator": CORE | {"octavo.engine.core", "octavo.simulator"},
    "octavo.executor": CORE | {"octavo.executor", "octavo.backends.base", "octavo.models"},
    "octavo.engine": ENGINE,
    "octavo.server": ENGINE | {"octavo", "octavo.server"},
    # The command line also tells about the machine, which only the native backend looks at.
    "octavo.cli": ENGINE | {"octavo", "octavo.cli", "octavo.server", "octavo.simulator", "octavo.backends.native"},
    "octavo.tokenization": {"octavo.errors", "octavo.tokenization"},
    "octavo.models": {"octavo.errors", "octavo.backends.base", "octavo.models"},
    "octavo.weights": {"octavo.errors", "octavo.backends.base", "octavo.models", "octavo.weights"},
    "octavo.backends": set(),
    **dict.fromkeys(BACKEND_CONTRACT, BACKEND_CONTRACT | {"octavo.errors"}),
    "octavo.backends.registry": BACKENDS | {"octavo.backends.base", "octavo.config", "octavo.errors"},
    **{backend: BACKEND_CONTRACT | {backend, "octavo.errors"} for backend in BACKENDS},
}
"""Module or package → modules and packages that it may import. The longest name that fits counts."""

NEEDS_NO_ARRAYS = {*FOUNDATION, "octavo", "octavo.cli", "octavo.__main__"}
PURE = {*NEEDS_NO_ARRAYS, "octavo.kvcache", "octavo.scheduler", "octavo.executor.interface", "octavo.engine.core"}
PURE |= {"octavo.simulator"}

THIRD_PARTY: dict[str, set[str]] = {
    **{module: set() for module in PURE},
    "octavo.cli.bench": {"rich"},
    "octavo.cli.bench_plot": {"matplotlib"},
    "octavo.executor": {"numpy"},
    "octavo.models": {"numpy"},
    "octavo.weights": {"numpy"},
    "octavo.weights.sources": {"huggingface_hub"},
    "octavo.weights.default_model": {"rich"},
    "octavo.engine.progress": {"rich"},
    "octavo.kvcache.policies.reuse_model": {"numpy"},  # where a measurement shows that it pays
    "octavo.simulator.replica": {"numpy"},  # the same
    "octavo.server": {"fastapi", "prometheus_client", "pydantic", "pydantic_core", "starlette", "uvicorn", "uvloop"},
    "octavo.tokenization": {"tokenizers", "jinja2"},
    "octavo.backends": {"numpy"},
    "octavo.backends.registry": {"torch"},  # to say what is missing
    "octavo.backends.torch": {"numpy", "torch", "triton"},
    "octavo.simulator.plots": {"matplotlib"},
    "octavo.cli.simulate": {"rich"},
}
"""Module or package → what it may import that is not ours; absent: nothing."""

ONLY_LATE = {"huggingface_hub", "matplotlib", "rich", "torch"}
AT_TOP = {"octavo.backends.torch": {"torch"}, "octavo.engine.progress": {"rich"}}
"""Heavy packages are imported inside functions, except by modules that are themselves imported so."""


@dataclass(frozen=True)
class Import:
    importer: str
    imported: str
    line: int
    is_late: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}{' (late)' if self.is_late else ''}"


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def imports_of(importer: str, source: str) -> Iterator[Import]:
    """Every import of a module, also those in functions and those for the type checker only."""

    def visit(node: ast.AST, is_late: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(importer, alias.name, child.lineno, is_late)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{importer}:{child.lineno}: imports are written in full"
                for alias in child.names:
                    submodule = f"{child.module}.{alias.name}"
                    name = submodule if submodule in MODULES else str(child.module)
                    yield Import(importer, name, child.lineno, is_late)
            else:
                is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                is_for_types = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
                yield from visit(child, is_late or is_function or is_for_types)

    yield from visit(ast.parse(source), False)


def is_within(module: str, packages: set[str]) -> bool:
    """``octavo`` stands for itself alone, any other name for what is below it, too."""
    return any(module == name or (name != "octavo" and module.startswith(f"{name}.")) for name in packages)


def entry_for(module: str, table: dict[str, set[str]]) -> set[str] | None:
    """The longest name of ``table`` that is ``module`` or holds it."""
    fitting = [name for name in table if is_within(module, {name})]
    return table[max(fitting, key=len)] if fitting else None


def faults(found: Import) -> Iterator[str]:
    top = found.imported.split(".")[0]
    if top in sys.stdlib_module_names:
        return
    if top == "octavo":
        allowed = entry_for(found.importer, MAY_IMPORT)
        if allowed is None:
            yield f"{found.importer} has no place in MAY_IMPORT"
        elif not is_within(found.imported, allowed):
            yield f"{found}: the arrow points up or sideways"
        return
    if top not in (entry_for(found.importer, THIRD_PARTY) or set()):
        yield f"{found}: not a package for this place"
    if top in ONLY_LATE and not found.is_late and top not in (entry_for(found.importer, AT_TOP) or set()):
        yield f"{found}: import it inside the function that needs it"


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module: str) -> None:
    source = MODULES[module].read_text()
    assert [fault for found in imports_of(module, source) for fault in faults(found)] == []


@pytest.mark.parametrize(
    "importer, line",
    [
        ("octavo.kvcache.manager", "import numpy"),
        ("octavo.kvcache.manager", "from octavo.scheduler.scheduler import Scheduler"),
        ("octavo.request", "from octavo.kvcache.block_hash import hash_block"),
        ("octavo.scheduler.scheduler", "from octavo.executor.interface import Executor"),
        ("octavo.engine.core", "from octavo.executor.model_executor import ModelExecutor"),
        ("octavo.engine.llm", "from octavo.cli import main"),
        ("octavo.executor.model_executor", "from octavo.backends.native import NativeBackend"),
        ("octavo.models.llama", "from octavo.backends.registry import create_backend"),
        ("octavo.models.llama", "import torch"),
        ("octavo.weights.gguf", "def read():\n    import torch"),
        ("octavo.backends.native.backend", "from octavo.backends.reference.norm import rms_norm"),
        ("octavo.backends.registry", "import torch"),
        ("octavo.cli.run", "import numpy"),
        ("octavo.config", "if TYPE_CHECKING:\n    from octavo.engine.llm import LLM"),
        ("octavo.unplanned.thing", "from octavo.errors import OctavoError"),
    ],
)
def test_the_rules_notice(importer: str, line: str) -> None:
    assert [fault for found in imports_of(importer, line) for fault in faults(found)] != []


def test_no_module_is_a_drawer_for_odds_and_ends() -> None:
    names = {part for module in MODULES for part in module.split(".")}
    assert names & {"utils", "util", "helpers", "helper", "misc", "common"} == set()


def loaded_after(statement: str) -> set[str]:
    """Top-level packages in memory after a fresh interpreter ran ``statement``."""
    code = f"{statement}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


HEAVY = {"huggingface_hub", "jinja2", "numpy", "rich", "tokenizers", "torch"}


@pytest.mark.parametrize(
    "statement",
    [
        "import octavo",
        "import octavo; octavo.SamplingParams(); octavo.EngineConfig()",
        "import octavo.cli.main; octavo.cli.main.build_parser()",
        "import octavo.engine.core, octavo.scheduler.scheduler, octavo.kvcache.manager",
    ],
)
def test_pure_modules_load_nothing_heavy(statement: str) -> None:
    assert loaded_after(statement) & HEAVY == set()


def test_an_engine_loads_without_torch() -> None:
    loaded = loaded_after("from octavo import LLM")
    assert "numpy" in loaded
    assert loaded & {"huggingface_hub", "rich", "torch"} == set()
