"""Jinja for strangers' templates: the dialect that chat templates are written in, and nothing beyond it.

Four things keep a template in its place:

* values have only the attributes, filters and functions listed here; everything else is refused by name;
* everything that costs work is rewritten or intercepted so that it spends from the rendering's :class:`RenderBudget`,
  before it works if it could make more than it was given: loops, calls, filters, operators, comparisons, slices,
  literals and each piece of output;
* containers hold plain data only, so their size is known;
* nothing can be loaded, imported or changed.

Importing this module imports Jinja; :mod:`octavo.tokenization.chat_template` does so when it first renders.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from jinja2 import Undefined, nodes, pass_context
from jinja2.environment import Template
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from octavo.errors import ChatTemplateError
from octavo.tokenization.render_budget import (
    OPERATION_UNITS,
    BudgetedContext,
    RenderBudget,
    budget_of,
    bytes_of,
)
from octavo.tokenization.template_filters import (
    STRING_METHODS,
    as_text,
    call_string_method,
    template_filters,
    template_tests,
)

MAX_RANGE = 100_000
MAX_NUMBER_BITS = 4096

_METHODS: tuple[tuple[type, frozenset[str]], ...] = (
    (str, STRING_METHODS),
    (Mapping, frozenset({"get", "items", "keys", "values"})),
    (list, frozenset({"count", "index"})),
    (tuple, frozenset({"count", "index"})),
)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Compiles and renders chat templates."""

    context_class = BudgetedContext
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, GenerationTag], finalize=_output
        )
        self.filters = template_filters()
        self.filters |= {"_copy": _copy, "_each": _each, "_new": _new, "_step": _step, "_text": as_text}
        self.tests = template_tests()
        self.globals = {
            "range": _bounded_range,
            "dict": _plain_dict,
            "namespace": TemplateNamespace,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def prepare(self, source: str) -> Template:
        """Parse, rewrite so that all work is counted, and compile."""
        tree = _CountWork().visit(self.parse(source))
        return self.from_string(tree)

    def render_pieces(self, template: Template, variables: dict[str, Any]) -> Iterator[str]:
        """The output, piece by piece, within a budget that grows with ``variables``."""
        context = template.new_context(variables)
        assert isinstance(context, BudgetedContext)
        context.budget = RenderBudget(variables)
        yield from template.root_render_func(context)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may read ``obj.attr``: only what is listed."""
        if attr.startswith("_"):
            return False
        if isinstance(obj, (LoopContext, Namespace)):
            return True
        return any(isinstance(obj, kind) and attr in methods for kind, methods in _METHODS)

    def wrap_str_format(self, value: Any) -> None:
        """``str.format`` is no exception: it is not among the methods that strings have here."""

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Every call of a template comes through here."""
        # Named as Jinja names them: a template's own keyword arguments may be called self, context or obj.
        budget = budget_of(__context)
        budget.operation()
        if isinstance(__obj, LoopContext):
            args = tuple(_each(__context, argument) for argument in args)
        elif isinstance(getattr(__obj, "__self__", None), str):
            return call_string_method(budget, __obj, args, kwargs)
        elif not __self._is_known_callable(__obj):
            raise SecurityError(f"{type(__obj).__name__} cannot be called here")
        return super().call(__context, __obj, *args, **kwargs)

    def _is_known_callable(self, obj: Any) -> bool:
        if isinstance(obj, (Macro, Undefined)) or obj in self.globals.values():
            return True  # calling an undefined name says which one it is
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        return isinstance(owner, LoopContext) or any(
            isinstance(owner, kind) and name in methods for kind, methods in _METHODS
        )

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Every arithmetic operator of a template comes through here."""
        budget = budget_of(context)
        budget.operation()
        numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
        if numbers:
            _check_numbers(operator, left, right)
        elif operator == "+":
            budget.spend(bytes_of(left) + bytes_of(right))
        elif operator == "*":
            sequence, count = (right, left) if isinstance(left, int) else (left, right)
            budget.spend(bytes_of(sequence) * max(0, count) if isinstance(count, int) else 0)
        elif not isinstance(left, Undefined) and not isinstance(right, Undefined):
            raise SecurityError(f"operator {operator} works on numbers only here, not on {type(left).__name__}")
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, (list, tuple)):
            budget.spend_on_container(result)
        return result


class TemplateNamespace(Namespace):
    """``namespace()``: all that a template can change. It stores no name by which it could pass for something else."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        for name in (*kwargs, *(key for mapping in args[1:] for key in mapping)):
            TemplateNamespace._check_name(name)
        Namespace.__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        TemplateNamespace._check_name(name)
        super().__setitem__(name, value)

    @staticmethod
    def _check_name(name: object) -> None:
        if not isinstance(name, str) or name.startswith("_"):
            raise SecurityError(f"a namespace cannot have an attribute {name!r:.80}")


class GenerationTag(Extension):
    """``{% generation %}…{% endgeneration %}`` marks the assistant's words for training; here it marks nothing."""

    tags = frozenset({"generation"})  # type: ignore[assignment]  # declared as a set; nobody changes it

    def parse(self, parser: Parser) -> nodes.Node:
        """Read up to the end tag; the body stays as it is."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _CountWork(NodeTransformer):
    """Wraps what costs work, and is not intercepted otherwise, in filters that spend it.

    Jinja finds the methods by the nodes' names.
    """

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "_each")
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        # Literal text is otherwise written without asking.
        node.nodes = [
            nodes.Const(child.data, lineno=child.lineno) if isinstance(child, nodes.TemplateData) else child
            for child in node.nodes
        ]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.nodes = [_filtered(child, "_text") for child in node.nodes]
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, "_copy") if isinstance(node.arg, nodes.Slice) else node

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, "_new") if node.ctx == "load" else node

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return _filtered(self.generic_visit(node), "_new")

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        return _filtered(self.generic_visit(node), "_new")

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        return _filtered(self.generic_visit(node), "_step")


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


@pass_context
def _each(context: Context, value: Any) -> Iterator[Any]:
    """The elements of what a loop goes through, each at the price of an operation."""
    budget = budget_of(context)
    for element in value:
        budget.operation()
        yield element


@pass_context
def _new(context: Context, value: Any) -> Any:
    """A container that the template puts together: only plain data in it, and not too much."""
    budget_of(context).spend_on_container(value)
    return value


@pass_context
def _copy(context: Context, value: Any) -> Any:
    """A slice: a copy of a part of what was there."""
    budget_of(context).spend(OPERATION_UNITS + bytes_of(value))
    return value


@pass_context
def _step(context: Context, value: Any) -> Any:
    budget_of(context).operation()
    return value


@pass_context
def _output(context: Context, value: Any) -> str:
    """Called by Jinja with everything that is output."""
    return as_text(context, value)


def _check_numbers(operator: str, left: float, right: float) -> None:
    """Refuse numbers that grow beyond any use."""
    bits = [number.bit_length() if isinstance(number, int) else 64 for number in (left, right)]
    if sum(bits) > MAX_NUMBER_BITS or (operator == "**" and (max(bits) > 64 or abs(right) > 64)):
        raise ChatTemplateError(f"the chat template computes with numbers too large: operator {operator}")


def _bounded_range(*args: int) -> range:
    numbers = range(*args)
    if max(map(int.bit_length, args)) > 32 or len(numbers) > MAX_RANGE:
        raise ChatTemplateError(f"the chat template asks for a range of more than {MAX_RANGE} numbers")
    return numbers


@pass_context
def _plain_dict(context: Context, *args: Any, **kwargs: Any) -> dict[Any, Any]:
    result = dict(*args, **kwargs)
    budget_of(context).spend_on_container(result)
    return result


def _raise_exception(message: object = "") -> None:
    raise ChatTemplateError(f"the chat template refuses the messages: {message!s:.500}")


def _strftime_now(pattern: str) -> str:
    if bytes_of(pattern) > 200:
        raise ChatTemplateError("strftime_now: the pattern is too long")
    return datetime.now().strftime(pattern)
