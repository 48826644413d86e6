"""How much a chat template may do, and what it may hold.

A template comes with a model file, from a stranger. It may use no more work than a fixed allowance plus a multiple of
what it was given, so neither its time nor its memory can run away. Work is counted in units: one for each character
written or copied and each element looked at, eight for each operation, whatever it does.
"""

from __future__ import annotations

import time
from collections.abc import ItemsView, KeysView, Mapping, ValuesView

from octavo.errors import ChatTemplateError

BASE_UNITS = 4 * 2**20
UNITS_PER_INPUT_UNIT = 64
MAX_SECONDS = 3.0
MAX_DEPTH = 64
OPERATION_UNITS = 8

Scalar = (type(None), bool, int, float)
_VIEWS = (KeysView, ValuesView, ItemsView)


class RenderBudget:
    """The work that one rendering may still do."""

    def __init__(self, input_units: int) -> None:
        self._units_left = BASE_UNITS + UNITS_PER_INPUT_UNIT * input_units
        self._deadline_s = time.monotonic() + MAX_SECONDS

    def spend(self, units: int) -> None:
        """Raises:
        ChatTemplateError: it is more than is left, or the time is over.
        """
        self._units_left -= units
        if self._units_left < 0:
            raise ChatTemplateError("the chat template does too much work for these messages (an endless loop?)")
        if time.monotonic() > self._deadline_s:
            raise ChatTemplateError(f"the chat template takes longer than {MAX_SECONDS:g} s")

    def operation(self) -> None:
        """Spend what any operation costs, however small."""
        self.spend(OPERATION_UNITS)

    def spend_on(self, value: object, indent: int = 0) -> None:
        """Spend the work of writing ``value`` out."""
        self.spend(written_units(value, self._units_left, indent))


def written_units(value: object, limit: int | None = None, indent: int = 0, depth: int = 0) -> int:
    """The work of writing plain data out; containers that share parts count the parts each time.

    Args:
        limit: counting may stop here; the result is then larger than it.
        indent: characters written before an element for each level that it is deep.

    Raises:
        ChatTemplateError: it is no plain data, or nested too deeply.
    """
    if isinstance(value, str):
        return len(value) + 1
    if isinstance(value, Scalar):
        return 1 + (value.bit_length() >> 2 if isinstance(value, int) else 0)
    if isinstance(value, range):
        return 1
    if depth == MAX_DEPTH:
        raise ChatTemplateError(f"data nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        parts: object = value.items()
    elif isinstance(value, (list, tuple, *_VIEWS)):
        parts = value
    else:
        raise ChatTemplateError(f"{type(value).__name__} is no plain data")
    units = 1
    for part in parts:  # type: ignore[attr-defined]  # all of them are iterable
        units += 1 + indent * depth + written_units(part, None if limit is None else limit - units, indent, depth + 1)
        if limit is not None and units > limit:
            break
    return units
