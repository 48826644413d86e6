"""How much a chat template may do, and what it may hold.

A template comes with a model file, from a stranger. It may use no more work than a fixed allowance plus a multiple of
what it was given, so neither its time nor its memory can run away. Work is counted in units: one for each character
written or copied and each element looked at, eight for each operation, whatever it does.
"""

from __future__ import annotations

import time
from collections.abc import ItemsView, KeysView, Mapping, ValuesView

from jinja2 import Undefined

from octavo.errors import ChatTemplateError

BASE_UNITS = 2 * 2**20
UNITS_PER_INPUT_UNIT = 64
MAX_SECONDS = 2.0
MAX_DEPTH = 128
"""Of containers in containers; a mapping counts twice, for its pairs."""
OPERATION_UNITS = 8

_VIEWS = (KeysView, ValuesView, ItemsView)


class RenderBudget:
    """The work that one rendering may still do."""

    def __init__(self, given: object) -> None:
        """Args:
        given: the variables that the template is given; plain data.
        """
        nodes, characters = measure(given)
        self._units_left = BASE_UNITS + UNITS_PER_INPUT_UNIT * (nodes + characters)
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

    def spend_on_text(self, value: object, indent: int = 0) -> None:
        """Spend the work of writing ``value`` out as text."""
        self.spend(sum(measure(value, self._units_left, indent)))

    def spend_on_container(self, value: object) -> None:
        """Spend the work of looking through a new container, and refuse one that would be too much as text.

        Its elements are not copied, so their characters cost nothing yet; but no value may exist over which a single
        comparison or conversion would take for ever.
        """
        nodes, characters = measure(value, self._units_left)
        self.spend(nodes)
        if characters > self._units_left:
            raise ChatTemplateError("the chat template makes a value that is too large")


def measure(value: object, limit: int | None = None, indent: int = 0) -> tuple[int, int]:
    """``(elements, characters)`` of plain data written out; containers that share parts count the parts each time.

    Args:
        limit: counting may stop when the sum is over it.
        indent: characters written before an element for each level that it is deep.

    Raises:
        ChatTemplateError: it is no plain data, or nested too deeply.
    """
    nodes = characters = 0
    waiting: list[tuple[object, int]] = [(value, 0)]
    while waiting:
        value, depth = waiting.pop()
        nodes += 1
        characters += indent * depth
        if isinstance(value, str):
            characters += len(value)
        elif isinstance(value, int):  # bool too
            characters += value.bit_length() >> 1
        elif isinstance(value, Mapping):
            waiting.extend((part, depth + 1) for part in value.items())
        elif isinstance(value, (list, tuple, *_VIEWS)):
            waiting.extend((part, depth + 1) for part in value)
        elif not (value is None or isinstance(value, (float, range, Undefined))):
            raise ChatTemplateError(f"{type(value).__name__} is no plain data")
        if depth > MAX_DEPTH:
            raise ChatTemplateError(f"data nested deeper than {MAX_DEPTH} levels")
        if limit is not None and nodes + characters > limit:
            break
    return nodes, characters
