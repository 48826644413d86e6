"""Run the server: port, engine, signals, drain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import uvicorn
import uvloop

from octavo.config import EngineConfig
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.remote_core import ENGINE_COMMAND
from octavo.errors import ConfigError
from octavo.server.app import create_app
from octavo.server.connection import Connections
from octavo.server.settings import ServerSettings
from octavo.server.state import ServerState

DRAIN_POLL_S = 0.05
DEAD_PEER_S = 60
"""A peer that acknowledges nothing for so long is gone, though it never said so."""

_logger = logging.getLogger(__name__)


def run_server(
    config: EngineConfig,
    settings: ServerSettings,
    engine_command: Sequence[str] = ENGINE_COMMAND,
    on_ready: Callable[[str], None] = print,
) -> None:
    """Serve until SIGTERM or SIGINT; return when everything under way has finished, or its time is up.

    Args:
        on_ready: called with the server's URL when it answers.

    Raises:
        ConfigError: the port cannot be had.
        OctavoError: the engine cannot be built.
    """
    _set_up_logging()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, settings, engine_command, on_ready))


async def _serve(
    config: EngineConfig, settings: ServerSettings, engine_command: Sequence[str], on_ready: Callable[[str], None]
) -> None:
    with _listening_socket(settings.host, settings.port) as listener:
        engine = AsyncEngine.create(config, engine_command)
        await engine.start()
        try:
            app = create_app(settings, engine)
            state: ServerState = app.state.server
            server = _Server(
                uvicorn.Config(
                    app,
                    http=cast(type[asyncio.Protocol], Connections(settings)),  # uvicorn only calls it
                    lifespan="off",
                    log_config=None,
                    access_log=False,
                    server_header=False,
                    ssl_certfile=settings.ssl_certfile,
                    ssl_keyfile=settings.ssl_keyfile,
                    timeout_graceful_shutdown=1,
                    timeout_keep_alive=30,
                    ws="none",
                ),
                lambda: on_ready(_url(settings, listener)),
            )
            stopper = _Stopper(server, state)
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, stopper.stop)
            await server.serve([listener])
            state.close()
        finally:
            await engine.close()


class _Server(uvicorn.Server):
    """Leaves signals to us, and tells when it answers."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Stopper:
    """The first signal drains; the second, or the end of the time to drain, ends what is left."""

    def __init__(self, server: uvicorn.Server, state: ServerState) -> None:
        self._server = server
        self._state = state
        self._draining: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """A signal has come."""
        if self._draining is None:
            self._state.is_draining = True
            self._draining = asyncio.get_running_loop().create_task(self._drain())
        else:
            self._state.engine.fail_all("the server was stopped")

    async def _drain(self) -> None:
        engine, drain_s = self._state.engine, self._state.settings.drain_s
        if engine.num_unfinished:
            _logger.warning("stopping: %d requests have %g s to finish", engine.num_unfinished, drain_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                while engine.num_unfinished:
                    await asyncio.sleep(DRAIN_POLL_S)
        engine.fail_all("the server was stopped before the request had finished")
        self._server.should_exit = True


def _listening_socket(host: str, port: int) -> socket.socket:
    """Bound before the model is loaded, so that a port that is taken is said at once."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigError(f"cannot listen on {host}: {error.strerror or error}; choose another --host") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if sys.platform == "linux":  # accepted sockets inherit these
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, DEAD_PEER_S // 2)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_S * 1000)
        listener.bind(address)
    except OSError as error:
        listener.close()
        problem = f"cannot listen on port {port} of {host}: {error.strerror}"
        raise ConfigError(f"{problem}; stop what uses it or choose another --port") from None
    return listener


def _url(settings: ServerSettings, listener: socket.socket) -> str:
    scheme = "http" if settings.ssl_certfile is None else "https"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{scheme}://{host}:{listener.getsockname()[1]}"


def _set_up_logging() -> None:
    """This is the program, not a library: its log goes to standard error."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
