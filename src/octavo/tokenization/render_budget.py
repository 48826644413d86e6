"""How much a chat template may do, and what it may hold.

A template comes with a model file, from a stranger. It may use no more work than a fixed allowance plus a multiple of
what it was given, so neither its time nor its memory can run away. Work is counted in units: one for each character
written or copied and each element looked at, eight for each operation, whatever it does.
"""

from __future__ import annotations

import time
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any

from jinja2 import Undefined
from jinja2.runtime import Context

from octavo.errors import ChatTemplateError

BASE_UNITS = 2**20
UNITS_PER_INPUT_UNIT = 32
MAX_SECONDS = 2.0
MAX_DEPTH = 128
"""Of containers in containers; a mapping counts twice, for its pairs."""
OPERATION_UNITS = 8

_VIEWS = (KeysView, ValuesView, ItemsView)
_END = object()


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


class BudgetedContext(Context):
    """A template's variables, and the budget of the rendering they belong to."""

    budget: RenderBudget

    def derived(self, locals: dict[str, Any] | None = None) -> Context:
        """The context of a macro or block: the same rendering, so the same budget."""
        context = super().derived(locals)
        assert isinstance(context, BudgetedContext)
        context.budget = self.budget
        return context


def budget_of(context: Context) -> RenderBudget:
    """The budget of the rendering that ``context`` belongs to."""
    assert isinstance(context, BudgetedContext)
    return context.budget


def length_of(value: object) -> int:
    """Characters or elements of what has a length that can grow; 0 for all else."""
    return len(value) if isinstance(value, (str, list, tuple, range, Mapping, *_VIEWS)) else 0


def bytes_of(value: object) -> int:
    """What a copy of a string or container takes, about: a character one byte, an element a pointer."""
    return length_of(value) * (1 if isinstance(value, str) else 8)


def measure(value: object, limit: int | None = None, indent: int = 0) -> tuple[int, int]:
    """``(elements, characters)`` of plain data written out; containers that share parts count the parts each time.

    Args:
        limit: counting may stop when the sum is over it.
        indent: characters written before an element for each level that it is deep.

    Raises:
        ChatTemplateError: it is no plain data, or nested too deeply.
    """
    nodes = characters = 0
    open_containers: list[Iterator[object]] = [iter((value,))]
    while open_containers:
        part = next(open_containers[-1], _END)
        if part is _END:
            open_containers.pop()
            continue
        nodes += 1
        characters += indent * len(open_containers)
        if isinstance(part, str):
            characters += len(part)
        elif isinstance(part, int):  # bool too
            characters += part.bit_length() >> 1
        elif isinstance(part, Mapping):
            open_containers.append(iter(part.items()))
        elif isinstance(part, (list, tuple, *_VIEWS)):
            open_containers.append(iter(part))
        elif not (part is None or isinstance(part, (float, range, Undefined))):
            raise ChatTemplateError(f"{type(part).__name__} is no plain data")
        if len(open_containers) > MAX_DEPTH:
            raise ChatTemplateError(f"data nested deeper than {MAX_DEPTH} levels")
        if limit is not None and nodes + characters > limit:
            break
    return nodes, characters
