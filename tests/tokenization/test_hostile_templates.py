"""Templates that loop, grow, or reach for Python: an error, soon, in little memory."""

# ruff: noqa: E501  (a template's line is as long as it is)

import contextlib
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import ChatTemplateError
from octavo.tokenization.chat_template import ChatTemplate

MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]

LOOPS = {
    "one huge range": "{% for i in range(10**9) %}{% endfor %}",
    "loops in loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "a macro that calls itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "macros that branch": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "a recursive loop": "{% for x in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "a branching recursive loop": (
        "{% for x in [1, 2] recursive %}{% if loop.depth < 40 %}{{ loop([1, 2]) }}{% endif %}{% endfor %}"
    ),
    "stripping many characters": "{{ ('x' * 500000).strip('y' * 500000 ~ 'x') }}",
    "trimming many characters": "{{ ('x' * 500000) | trim('y' * 500000 ~ 'x') }}",
    "searching from the right": "{{ ('a' * 500000).rfind('b' ~ 'a' * 250000) }}",
    "searching in a filter": "{{ range(99999) | map('string') | select('in', 'x' * 1000000) | list }}",
    "comparisons without output": (
        "{% set a = range(99999) | list %}{% set b = range(99999) | list %}"
        "{% for i in range(99999) %}{% if a == b %}{% endif %}{% endfor %}"
    ),
}
GROWTH = {
    "repeated string": "{{ 'a' * 10**9 }}",
    "repeated list": "{{ [0] * 10**9 }}",
    "power": "{{ 9 ** 999999999 }}",
    "squares": "{% set n = namespace(x=3) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "doubling by ~": "{% set n = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "doubling by +": "{% set n = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "lists in lists": "{% set n = namespace(s=['a']) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}{% endfor %}",
    "dicts in dicts": "{% set n = namespace(s=1) %}{% for i in range(60) %}{% set n.s = {1: n.s, 2: n.s} %}{% endfor %}",
    "replace": "{% set n = namespace(s='a') %}{% for i in range(60) %}{% set n.s = n.s.replace('a', 'aaaaaaaa') %}{% endfor %}",
    "replace filter": (
        "{% set n = namespace(s='a') %}{% for i in range(60) %}{% set n.s = n.s | replace('a', 'aaaaaaaa') %}{% endfor %}"
    ),
    "replace by keyword": "{% set n = namespace(s='a') %}{% for i in range(60) %}{% set n.s = n.s | replace('a', new='aaaaaaaa') %}{% endfor %}",
    "replace of nothing": "{% set n = namespace(s='a') %}{% for i in range(60) %}{% set n.s = n.s.replace('', n.s) %}{% endfor %}",
    "join": "{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = n.s.join([n.s, n.s, n.s]) %}{% endfor %}",
    "join filter": "{{ range(99999) | join('x' * 99999) }}",
    "map": "{{ range(99999) | map('replace', '1', 'x' * 99999) | list }}",
    "indent": "{{ 'a\\nb' | indent(10**9) }}",
    "tojson": "{{ messages | tojson(indent=10**9) }}",
    "tojson separators": "{{ range(9999) | list | tojson(separators=('x' * 99999, ':')) }}",
    "many pieces": "{{ ('a ' * 2000000).split() | length }}",
    "literal text in a block": "{% set x %}{% for i in range(99999) %}" + "x" * 50_000 + "{% endfor %}{% endset %}",
    "output": "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
    "copies in variables": "{% set x = range(99999) | list %}"
    + "".join(f"{{% set a{i} = x[:] %}}" for i in range(300)),
    "digits": "{{ '%999999999d' % 1 }}",
    "format": "{{ '{:999999999}'.format(1) }}",
    "padding": "{{ 'a'.ljust(10**9) }}",
    "centre": "{{ 'a' | center(10**9) }}",
    "nonsense text": "{{ lipsum(n=10**9) }}",
    "bytes": "{{ (1).to_bytes(10**9, 'big') }}",
    "clock": "{{ strftime_now('%Y' * 99999) }}",
}
REACHES = {
    "attribute of a literal": "{{ ().__class__.__bases__ }}",
    "attribute by item": "{{ ''['__class__'].__mro__ }}",
    "attribute by filter": "{{ messages | attr('__class__') }}",
    "attribute by map": "{{ ['a'] | map(attribute='__class__.__mro__') | list | join }}" * 1 + "{{ ''.__class__.x }}",
    "a function's globals": "{{ raise_exception.__globals__.os }}",
    "a class's constructor": "{{ namespace.__init__.__globals__ }}",
    "a macro's innards": "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "the loop's innards": "{% for m in messages %}{{ loop._iterable.x }}{% endfor %}",
    "the template itself": "{{ self._TemplateReference__context.x }}",
    "changing the messages": "{{ messages.append(1) }}",
    "changing a message": "{{ messages[0].update(role='x') }}",
    "changing by pop": "{{ messages.pop() }}",
    "posing as another class": "{% set n = namespace() %}{% set n.__class__ = 1 %}",
    "posing at birth": "{% set n = namespace(__class__=1) %}",
    "a namespace in a list": "{% set n = namespace() %}{% set n.a = [n] %}{{ n.a }}",
    "loading": "{% include 'x' %}",
    "importing": "{% import 'x' as y %}",
    "inheriting": "{% extends 'x' %}",
    "calling a format": "{{ '{0.__class__}'.format(1) }}",
    "calling data": "{{ messages[0].role() }}",
    "encoding": "{{ 'a'.encode('idna') }}",
}
MISTAKES = {
    "not closed": "{{",
    "unknown tag": "{% foo %}",
    "unknown filter": "{{ 1 | foo }}",
    "an undefined name": "{{ foo.bar }}",
    "adding nothing": "{{ messages[0].role + none }}",
    "dividing by nothing": "{{ 1 / 0 }}",
    "a break outside": "{% break %}",
    "nested parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "a long sum": "{{ " + "+".join(["1"] * 20_000) + " }}",
    "nested blocks": "{% if 1 %}" * 2000 + "{% endif %}" * 2000,
    "too long": "x" * 70_000,
}
HOSTILE = {**LOOPS, **GROWTH, **REACHES, **MISTAKES}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_ends_in_an_error_soon(name):
    begin = time.process_time()
    with pytest.raises(ChatTemplateError):
        ChatTemplate(HOSTILE[name]).render(MESSAGES)
    assert time.process_time() - begin < 5.0


@pytest.mark.parametrize("name", GROWTH)
def test_a_growing_template_stays_small(name):
    template = ChatTemplate(GROWTH[name])
    ChatTemplate("").render(MESSAGES)  # Jinja's own memory does not count
    tracemalloc.start()
    try:
        with pytest.raises(ChatTemplateError):
            template.render(MESSAGES)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100 * 2**20


def test_long_conversations_have_work_to_spare():
    from tokenization import chat_templates

    talk = [{"role": role, "content": "word " * 400} for _ in range(500) for role in ("user", "assistant")]
    for source in chat_templates.ALL.values():
        special = {"bos_token": "<s>", "eos_token": "</s>"}
        assert len(ChatTemplate(source, special).render(talk)) > 1_000_000


FRAGMENTS = st.sampled_from(
    [
        "{% for m in messages %}", "{% endfor %}", "{% if x %}", "{% else %}", "{% endif %}", "{{ ", " }}", "{%", "%}", "m", ".",
        "messages", "[0]", "['role']", "|", "tojson", "join", "map", "(", ")", "'a'", "+", "~", "*", "**", "%", "99999", "range",
        "{% set x = ", "{% macro m(a) %}", "{% endmacro %}", "namespace", "loop", "recursive", "__class__", "format", " is ",
        "defined", "{#", "#}", "-", "\n", "{% generation %}", "{% endgeneration %}", "{% raw %}", "none", "[", "]", ":", ",",
    ]
)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(fragments=st.lists(FRAGMENTS, max_size=14))
def test_random_templates_render_or_fail_as_chat_templates(fragments):
    with contextlib.suppress(ChatTemplateError):
        assert isinstance(ChatTemplate("".join(fragments)).render(MESSAGES), str)
