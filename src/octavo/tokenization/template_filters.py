"""The filters, tests and string methods that chat templates have, each at the price of what it does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from jinja2 import pass_context
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS
from jinja2.runtime import Context
from jinja2.tests import TESTS

from octavo.errors import ChatTemplateError
from octavo.tokenization.render_budget import OPERATION_UNITS, RenderBudget, budget_of, length_of

MAX_INDENT = 16

STRING_METHODS = frozenset({
    "capitalize", "count", "endswith", "find", "index", "isalnum", "isalpha", "isdecimal", "isdigit", "islower",
    "isnumeric", "isspace", "istitle", "isupper", "join", "lower", "lstrip", "partition", "removeprefix",
    "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "split", "splitlines",
    "startswith", "strip", "swapcase", "title", "upper"
})  # fmt: skip
# Filters that see their input as text; that pick some of its elements; and that look at no more than one thing.
_TEXT_FILTERS = frozenset({
    "capitalize", "e", "escape", "indent", "lower", "replace", "safe", "string", "title", "trim", "upper"
})  # fmt: skip
_PICKING_FILTERS = frozenset({
    "dictsort", "items", "list", "max", "min", "reject", "rejectattr", "reverse", "select", "selectattr", "sort",
    "unique"
})  # fmt: skip
_VALUE_FILTERS = frozenset({"abs", "count", "d", "default", "first", "float", "int", "last", "length"})
_LISTING_METHODS = frozenset({"partition", "rpartition", "rsplit", "split", "splitlines"})
_SEARCHING_METHODS = frozenset({"lstrip", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "strip", "trim"})


def template_filters() -> dict[str, Any]:
    """Name → filter, of all that a template can use."""
    names = ("join", "map", *_TEXT_FILTERS, *_PICKING_FILTERS, *_VALUE_FILTERS)
    return {name: _budgeted_filter(name) for name in names} | {"tojson": _to_json}


def template_tests() -> dict[str, Any]:
    """Name → test: all of Jinja's."""
    return {name: _budgeted_test(name) for name in TESTS}


@pass_context
def as_text(context: Context, value: Any) -> str:
    """What ``value`` looks like as text."""
    budget_of(context).spend_on_text(value)
    return value if isinstance(value, str) else str(value)


def _budgeted_filter(name: str) -> Callable[..., Any]:
    """Jinja's filter of that name, at the price of what it reads and makes."""
    original: Callable[..., Any] = FILTERS[name]

    @pass_context
    def budgeted(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        budget = budget_of(context)
        budget.operation()
        if name in _TEXT_FILTERS:
            if not isinstance(value, str):
                value = as_text(context, value)
            budget.spend(len(value) + _extra_work(name, value, args, kwargs))
        elif name == "join":
            budget.spend_on_text(value)
            budget.spend(length_of(value) * max(map(length_of, (*args, *kwargs.values())), default=0))
        elif name not in _VALUE_FILTERS:
            budget.spend(OPERATION_UNITS * length_of(value))
        result = original(*_what_it_is_passed(context, original), value, *args, **kwargs)
        if isinstance(result, Iterator):
            result = list(result)
        if name == "map":
            budget.spend_on_container(result)
        return result

    return budgeted


def _budgeted_test(name: str) -> Callable[..., bool]:
    """Jinja's test of that name, at the price of an operation."""
    original: Any = TESTS[name]

    @pass_context
    def budgeted(context: Context, value: Any, *args: Any, **kwargs: Any) -> bool:
        budget_of(context).operation()
        return bool(original(*_what_it_is_passed(context, original), value, *args, **kwargs))

    return budgeted


def _what_it_is_passed(context: Context, function: Callable[..., Any]) -> tuple[Any, ...]:
    """What a filter or test of Jinja's own wants before its value: some of them are marked as wanting the context."""
    mark = getattr(function, "jinja_pass_arg", None)
    if mark is None:
        return ()
    wanted = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}
    return (wanted[mark.name],)


def _extra_work(name: str, text: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """What a text filter or string method costs, at most, beyond looking at its text once."""
    if name == "indent":
        width = args[0] if args else kwargs.get("width", 4)
        return (text.count("\n") + 1) * (length_of(width) if isinstance(width, str) else abs(int(width)))
    if name == "replace":
        old = args[0] if args else kwargs.get("old")
        new = args[1] if len(args) > 1 else kwargs.get("new")
        return (text.count(old) if isinstance(old, str) else 0) * length_of(new)
    if name in _SEARCHING_METHODS:  # Python compares anew at each place
        return len(text) * sum(map(length_of, (*args, *kwargs.values())))
    return 5 * len(text) if name in ("e", "escape") else 0


def call_string_method(budget: RenderBudget, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a template's call of a method of a string gives."""
    text, name = method.__self__, method.__name__
    if name not in STRING_METHODS:
        raise SecurityError(f"str.{name} cannot be called here")
    kwargs = {key: value for key, value in kwargs.items() if key not in ("_loop_vars", "_block_vars")}  # Jinja's own
    budget.spend(len(text) * (OPERATION_UNITS if name in _LISTING_METHODS else 1))
    if name == "join":
        for elements in args:
            budget.spend_on_text(elements)
            budget.spend(len(text) * length_of(elements))
    else:
        budget.spend(_extra_work(name, text, args, kwargs))
    return method(*args, **kwargs)


@pass_context
def _to_json(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """``tojson`` as chat templates expect it: not escaped for HTML."""
    if indent is not None and not (isinstance(indent, int) and 0 <= indent <= MAX_INDENT):
        raise ChatTemplateError(f"tojson: indent must be between 0 and {MAX_INDENT}, not {indent!r:.80}")
    if separators is not None and sum(map(length_of, separators)) > MAX_INDENT:
        raise ChatTemplateError("tojson: the separators are too long")
    budget_of(context).spend_on_text(value, indent or 0)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
