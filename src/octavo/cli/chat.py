"""``octavo chat``: a conversation. Each turn finds the turns before it in the prefix cache."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from octavo.cli import options, standard_input
from octavo.cli.answer import compute_answer
from octavo.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from octavo.engine.build import BuiltEngine
    from octavo.sampling_params import SamplingParams

_COMMANDS = """\
  /reset   forget the conversation
  /help    this list
  /exit    leave (so does ctrl-D)
  ctrl-C   stops the answer under way; the conversation goes on
A line that begins with a space is sent as it is, also if a / follows."""

_EXAMPLES = f"""\
Below each answer, on standard error, a line says what it took; "cached" are prompt tokens whose KV was already there.

in the conversation:
{_COMMANDS}

examples:
  octavo chat
  octavo chat --temperature 0.7 --model path/to/model.gguf
  printf 'My name is Ada.\\nWhat is my name?\\n' | octavo chat     (one line is one turn)"""


def add_parser(commands: options.Subparsers) -> None:
    """Add ``octavo chat``."""
    parser = options.add_command(commands, "chat", "hold a conversation", _EXAMPLES)
    options.add_model_option(parser)
    options.add_sampling_options(parser, "each answer")
    options.add_engine_options(parser)
    parser.set_defaults(command=chat)


def chat(arguments: argparse.Namespace) -> int:
    """Converse until ``/exit`` or the end of the input."""
    params = options.sampling_params(arguments)
    config = options.engine_config(arguments, arguments.model, max_num_seqs=1)

    from octavo.engine.build import build_engine

    built = build_engine(config)
    if built.engine.tokenizer.chat_template is None:
        raise ConfigError(f"{arguments.model} has no chat template, so it holds no conversation; use octavo run")
    conversation = Conversation(built, params)
    is_interactive = sys.stdin.isatty()
    for line in _read_terminal() if is_interactive else standard_input.read_lines():
        if line == "/exit":
            break
        try:
            _take_line(conversation, line)
        except RequestError as error:  # such as: no room for another turn
            if not is_interactive:
                raise
            print(f"octavo: {error}\n(/reset begins anew)", file=sys.stderr)
    return 0


class Conversation:
    """Messages so far, and the engine that continues them."""

    def __init__(self, built: BuiltEngine, params: SamplingParams) -> None:
        self.messages: list[dict[str, str]] = []
        self._built = built
        self._params = params
        self._num_turns = 0

    def answer(self, text: str) -> None:
        """One turn. If the engine refuses it (:class:`RequestError`), the conversation stays as it was.

        An answer that ctrl-C stops stays as far as it came.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        engine = self._built.engine
        self._num_turns += 1
        facts = compute_answer(
            engine, f"turn {self._num_turns}", engine.tokenizer.render_chat(messages), self._params, _write
        )
        print(flush=True)
        print(facts.line(self._built.kv_cache_spec.num_blocks), file=sys.stderr, flush=True)
        if facts.text:
            self.messages = [*messages, {"role": "assistant", "content": facts.text}]

    def reset(self) -> None:
        """Forget all messages. Their KV stays cached until its room is needed."""
        self.messages = []


def _take_line(conversation: Conversation, line: str) -> None:
    if line == "/reset":
        conversation.reset()
    elif line == "/help":
        print(_COMMANDS, file=sys.stderr)
    elif line.startswith("/"):
        print(f"octavo: there is no command {line.split()[0]}\n{_COMMANDS}", file=sys.stderr)
    elif line.strip():
        conversation.answer(line.removeprefix(" "))


def _read_terminal() -> Iterator[str]:
    """Lines that a person types, until ctrl-D."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - gives input() a history and keys to edit with
    print("/help lists the commands, ctrl-D leaves", file=sys.stderr)
    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print("\n(ctrl-D leaves)", file=sys.stderr)


def _write(text: str) -> None:
    print(text, end="", flush=True)
