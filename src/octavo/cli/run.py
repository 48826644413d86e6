"""``octavo run``: one prompt, one answer."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from octavo.cli import options, standard_input
from octavo.cli.answer import compute_answer

_EXAMPLES = """\
The answer goes to standard output as it is computed; below it, on standard error, one line says how many tokens the
prompt had and were generated, the time to the first token, tokens per second, and KV blocks used.

examples:
  octavo run "What is the capital of France?"
  octavo run "Write a haiku" --temperature 0.8 --seed 7
  octavo run --raw "Once upon a time" --max-tokens 50
  octavo run "Name three colours" --json
  cat question.txt | octavo run -"""


def add_parser(commands: options.Subparsers) -> None:
    """Add ``octavo run``."""
    parser = options.add_command(commands, "run", "answer one prompt", _EXAMPLES)
    parser.add_argument("prompt", metavar="PROMPT", help="the question; - reads it from standard input")
    options.add_model_option(parser)
    parser.add_argument(
        "--raw", action="store_true", help="continue PROMPT as it is, without the model's chat template"
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object instead: text, token_ids, finish_reason, prompt_tokens, completion_tokens, "
        "cached_tokens, ttft_s, tokens_per_s, blocks_used",
    )
    options.add_sampling_options(parser, "answer")
    options.add_engine_options(parser)
    parser.set_defaults(command=run)


def run(arguments: argparse.Namespace) -> int:
    """Answer; 130 if ctrl-C stopped it."""
    params = options.sampling_params(arguments)
    config = options.engine_config(arguments, arguments.model, max_num_seqs=1)
    prompt = standard_input.read_all() if arguments.prompt == "-" else arguments.prompt

    from octavo.engine.build import build_engine

    built = build_engine(config)
    if not arguments.raw and built.engine.tokenizer.chat_template is not None:
        prompt = built.engine.tokenizer.render_chat([{"role": "user", "content": prompt}])
    facts = compute_answer(built.engine, "run", prompt, params, _discard if arguments.json else _write)
    if arguments.json:
        print(json.dumps(dataclasses.asdict(facts)))
    else:
        print(flush=True)
        print(facts.line(built.kv_cache_spec.num_blocks), file=sys.stderr)
    return 130 if facts.finish_reason == "abort" else 0


def _write(text: str) -> None:
    print(text, end="", flush=True)


def _discard(text: str) -> None:
    """The text comes whole, with the rest."""
