"""Text from standard input, which is UTF-8 whatever the locale says."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from octavo.errors import RequestError


def read_all() -> str:
    """Everything up to the end, without the line feed that ends it."""
    return _decoded(sys.stdin.buffer.read()).removesuffix("\n")


def read_lines() -> Iterator[str]:
    """Line by line, as they come, without line feeds."""
    for line in sys.stdin.buffer:
        yield _decoded(line).removesuffix("\n")


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        problem = f"byte {error.start} is 0x{data[error.start]:02x}"
        raise RequestError(f"standard input is not UTF-8 text: {problem}; convert it first") from None
