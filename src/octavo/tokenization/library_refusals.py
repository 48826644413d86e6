"""What the tokenizers library says against a file becomes an error of the file's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from octavo.errors import ModelFileError


@contextmanager
def library_refusals(path: object, field: str) -> Iterator[None]:
    """Turn the library's errors into :class:`ModelFileError`.

    It raises plain ``Exception``, and a panic in its Rust code is a ``BaseException``.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        raise ModelFileError(path, field, f"makes no tokenizer: {error!s:.200}") from error
