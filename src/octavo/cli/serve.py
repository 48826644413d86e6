"""``octavo serve``: an OpenAI-compatible server."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path

from octavo.cli import options
from octavo.errors import ConfigError

KEYS_VARIABLE = "OCTAVO_API_KEYS"

_EXAMPLES = f"""\
Without keys everybody who reaches the port may ask; so the port is open to this machine only, unless --host says more.
Keys come from --api-key-file (one a line; name:key gives the key's owner a name) or from {KEYS_VARIABLE} (separated by
commas). The first SIGTERM or ctrl-C lets running requests finish; the second ends them.

examples:
  octavo serve
  octavo serve --model ~/models/Qwen3-0.6B --port 9000
  octavo serve --host 0.0.0.0 --api-key-file keys.txt --ssl-certfile cert.pem --ssl-keyfile key.pem
  curl localhost:8000/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"messages": [{{"role": "user", "content": "Hello"}}]}}'"""


def add_parser(commands: options.Subparsers) -> None:
    """Add ``octavo serve``."""
    parser = options.add_command(commands, "serve", "serve a model over HTTP, as OpenAI's API", _EXAMPLES)
    options.add_model_option(parser)
    parser.add_argument("--host", default="127.0.0.1", metavar="H", help="where to listen (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, metavar="P", help="0 takes a free one (default: 8000)")
    parser.add_argument(
        "--served-model-name",
        action="append",
        metavar="NAME",
        help="what clients call the model; may be given several times (default: as --model)",
    )
    _add_access_options(parser)
    _add_limit_options(parser)
    options.add_engine_options(parser)
    parser.set_defaults(command=serve)


def _add_access_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("access")
    group.add_argument("--api-key-file", type=Path, metavar="FILE", help="keys that are accepted, one a line")
    group.add_argument("--ssl-certfile", type=Path, metavar="FILE", help="serve HTTPS with this certificate")
    group.add_argument("--ssl-keyfile", type=Path, metavar="FILE", help="and its key")
    group.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="URL",
        help="let pages from there use the API; may be given several times (default: none)",
    )
    group.add_argument(
        "--log-requests", action="store_true", help="write the text of requests and answers to the log (default: never)"
    )


def _add_limit_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits")
    group.add_argument("--max-num-seqs", type=int, metavar="N", help="requests that run at once (default: 64)")
    group.add_argument(
        "--max-waiting-requests", type=int, metavar="N", help="one more is refused with 429 (default: no limit)"
    )
    group.add_argument(
        "--max-queue-time", type=float, metavar="S", help="seconds to wait for a start; then 503 (default: no limit)"
    )
    group.add_argument("--max-prompt-tokens", type=int, metavar="N", help="longer prompts are refused (default: none)")
    group.add_argument("--max-body-mb", type=float, default=16, metavar="N", help="megabytes of a body (default: 16)")
    group.add_argument(
        "--max-connections",
        type=int,
        default=4096,
        metavar="N",
        help="one more takes the place of a connection that asks nothing (default: 4096)",
    )
    group.add_argument(
        "--drain", type=float, default=30, metavar="S", help="seconds to finish requests when stopped (default: 30)"
    )
    group.add_argument(
        "--stall",
        type=float,
        default=10,
        metavar="S",
        help="seconds without a finished step, while work waits, until /ready says 503 (default: 10)",
    )


def serve(arguments: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    try:
        from octavo.server.serve import run_server
    except ModuleNotFoundError as error:
        raise ConfigError(f"the server needs {error.name}: pip install 'octavo[server]'") from None
    from octavo.server.auth import ApiKeys
    from octavo.server.settings import ServerSettings

    limits = {
        "max_num_seqs": arguments.max_num_seqs,
        "max_waiting_requests": arguments.max_waiting_requests,
        "max_queue_time_s": arguments.max_queue_time,
    }
    config = options.engine_config(
        arguments, arguments.model, **{name: value for name, value in limits.items() if value is not None}
    )
    settings = ServerSettings(
        host=arguments.host,
        port=arguments.port,
        model_names=tuple(arguments.served_model_name or (arguments.model,)),
        api_keys=ApiKeys.read(arguments.api_key_file, os.environ.get(KEYS_VARIABLE)),
        max_body_bytes=int(arguments.max_body_mb * 2**20),
        max_prompt_tokens=arguments.max_prompt_tokens,
        max_connections=arguments.max_connections,
        drain_s=arguments.drain,
        stall_s=arguments.stall,
        ssl_certfile=arguments.ssl_certfile,
        ssl_keyfile=arguments.ssl_keyfile,
        cors_origins=tuple(arguments.cors_origin),
        log_requests=arguments.log_requests,
    )
    run_server(config, settings, on_ready=_say_ready)
    return 0


def _say_ready(url: str) -> None:
    with contextlib.suppress(OSError):  # a log on a full disk
        print(f"octavo serves {url}/v1 (API page: {url}/docs)", file=sys.stderr, flush=True)
