"""The ``octavo`` command: which command runs, and how its failures reach a person.

Exit codes: 0 done; 1 it could not be done; 2 the command line asks for something wrong; 130 stopped by ctrl-C;
141 whoever read the output left. A failure is a line on standard error; only Python's own development mode
(``python -X dev -m octavo …``) shows a traceback.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import octavo
from octavo.cli import bench, chat, info, pull, run, serve, simulate
from octavo.errors import ConfigError, OctavoError, RequestError, RequestTooLargeError

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141

_EPILOG = """\
examples:
  octavo run "What is the capital of France?"
  octavo chat
  octavo info

octavo COMMAND --help explains each. The default model is fetched once, when it is first used."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that ``argv`` (default: the process's own arguments) names; return the exit code."""
    try:
        arguments = build_parser().parse_args(argv)
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal may lack characters
        exit_code: int = arguments.command(arguments)
        sys.stdout.flush()
        return exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes at the end
        return EXIT_BROKEN_PIPE
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        message, exit_code = explain(error)
        print(f"octavo: {message}", file=sys.stderr)
        return exit_code


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="octavo",
        description="Run language models through a paged KV cache.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"octavo {octavo.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (run, chat, serve, bench, pull, info, simulate):
        command.add_parser(commands)
    return parser


def explain(error: Exception) -> tuple[str, int]:
    """What to tell a person about a failure, and the exit code."""
    if isinstance(error, RequestTooLargeError):
        return str(error), EXIT_FAILURE
    if isinstance(error, (ConfigError, RequestError)):
        return str(error), EXIT_USAGE
    if isinstance(error, OctavoError):
        return str(error), EXIT_FAILURE
    if isinstance(error, MemoryError):
        return f"memory ran out: {error}; try a smaller --max-model-len or --num-blocks", EXIT_FAILURE
    return (
        f"a fault of Octavo itself: {type(error).__name__}: {error}\n"
        "To see where, run: python -X dev -m octavo … (and please report it)",
        EXIT_FAILURE,
    )


if __name__ == "__main__":
    sys.exit(main())
