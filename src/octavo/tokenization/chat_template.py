"""Turns a conversation into the prompt that a chat model expects, with the template that comes with the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from octavo.errors import ChatTemplateError, RequestError

if TYPE_CHECKING:
    from jinja2.environment import Template

    from octavo.tokenization.template_sandbox import TemplateSandbox

MAX_SOURCE_CHARACTERS = 64 * 1024


class ChatTemplate:
    """One chat template.

    It is a stranger's program, so it runs in a sandbox that counts its work: a template that loops without end, reaches
    for Python's internals or writes without measure ends in a :class:`ChatTemplateError`, soon and in little memory.
    """

    def __init__(
        self, source: str, special_tokens: Mapping[str, str] | None = None, *, name: str = "chat template"
    ) -> None:
        """Args:
        source: the Jinja source; compiled when it is first used.
        special_tokens: what it may call by name: ``bos_token``, ``eos_token``, … → text.
        name: where it came from, for messages.
        """
        self.source = source
        self.special_tokens = dict(special_tokens or {})
        self.name = name

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **extra: Any,
    ) -> str:
        """The prompt for ``messages``.

        Args:
            messages: each with a ``role`` and a ``content``: a string, or a list of ``{"type": "text", "text": …}``
                parts, which are joined with line feeds. Only a message with ``tool_calls`` may lack it.
            add_generation_prompt: end with what makes the model answer.
            tools: descriptions of functions, for templates that know them.
            extra: further variables of the template; plain data.

        Raises:
            RequestError: the messages are malformed.
            ChatTemplateError: the template is wrong, does too much, or refuses the messages.
        """
        variables = {
            **self.special_tokens,
            "documents": None,
            **extra,
            "messages": _checked_messages(messages),
            "tools": None if tools is None else list(tools),
            "add_generation_prompt": add_generation_prompt,
        }
        sandbox, template = self._compiled
        try:
            return "".join(sandbox.render_pieces(template, variables))
        except ChatTemplateError as error:
            raise ChatTemplateError(f"{self.name}: {error}") from None
        except Exception as error:  # whatever a stranger's program runs into
            raise ChatTemplateError(f"{self.name}: the chat template fails: {_description(error)}") from error

    @cached_property
    def _compiled(self) -> tuple[TemplateSandbox, Template]:
        from octavo.tokenization.template_sandbox import TemplateSandbox

        if len(self.source) > MAX_SOURCE_CHARACTERS:
            raise ChatTemplateError(f"{self.name}: the chat template is longer than {MAX_SOURCE_CHARACTERS} characters")
        sandbox = TemplateSandbox()
        try:
            return sandbox, sandbox.prepare(self.source)
        except Exception as error:  # the parser's own errors, and what hostile nesting provokes in it
            raise ChatTemplateError(f"{self.name}: the chat template is wrong: {_description(error)}") from error


def _description(error: Exception) -> str:
    line = getattr(error, "lineno", None)
    place = f"line {line}: " if isinstance(line, int) else ""
    return f"{place}{type(error).__name__}: {error!s:.300}"


def _checked_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence):
        raise RequestError(f"messages must be a list of messages, not {type(messages).__name__}")
    if not messages:
        raise RequestError("messages is empty; a conversation needs at least one message")
    return [_checked_message(index, message) for index, message in enumerate(messages)]


def _checked_message(index: int, message: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise RequestError(
            f"messages[{index}] must be an object with a role and a content, not {type(message).__name__}"
        )
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(f"messages[{index}].role must be a string such as 'user', not {role!r:.80}")
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        return dict(message)
    return {**message, "content": _checked_content(index, content)}


def _checked_content(index: int, content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise RequestError(f"messages[{index}].content must be a string or a list of text parts, not {content!r:.80}")
    texts = []
    for place, part in enumerate(content):
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            where = f"messages[{index}].content[{place}]"
            raise RequestError(
                f'{where} must be {{"type": "text", "text": …}}: the model reads text only, not {part!r:.80}'
            )
        texts.append(part["text"])
    return "\n".join(texts)
