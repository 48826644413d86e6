"""The server's end of an engine process: start it, talk to it, notice when it is gone."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import cast

from octavo import errors
from octavo.config import EngineConfig
from octavo.engine.messages import FromEngine, MessageBuffer, Ready, StartEngine, StartFailed, ToEngine, encode
from octavo.errors import EngineDiedError, ModelError, OctavoError

ENGINE_COMMAND = (sys.executable, "-m", "octavo.engine.engine_process")
"""Run with the descriptor of the engine's end of the socket as one more argument."""

EXIT_WAIT_S = 10.0
"""After its socket has closed, a process gets so long to end before it is killed."""


class RemoteCore:
    """A running engine process.

    Attributes:
        ready: what it said when it was built.
        pid: of the process.
    """

    def __init__(self, process: subprocess.Popen[bytes], protocol: _Protocol, ready: Ready) -> None:
        self._process = process
        self._protocol = protocol
        self.ready = ready
        self.pid = process.pid

    @classmethod
    async def start(
        cls,
        config: EngineConfig,
        on_message: Callable[[FromEngine], None],
        on_end: Callable[[], None],
        command: Sequence[str] = ENGINE_COMMAND,
    ) -> RemoteCore:
        """Start a process and wait until its engine is built.

        Args:
            on_message: called with each message, in the event loop.
            on_end: called once, when the process has gone, for whatever reason.

        Raises:
            OctavoError: it cannot be built; the class is that of the engine's own error.
            EngineDiedError: the process ended without a word.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        protocol = _Protocol()
        try:
            await asyncio.get_running_loop().create_connection(lambda: protocol, sock=ours)
            protocol.send(StartEngine(config))
            first = await protocol.first
        except BaseException:
            process.kill()
            process.wait()
            protocol.close()
            raise
        if isinstance(first, StartFailed):
            await _ended(process)
            raise _start_error(first)
        if first is None:
            code = await _ended(process)
            raise EngineDiedError(f"the engine process ended while it started ({describe_exit(code)})")
        assert isinstance(first, Ready), first
        protocol.listen(on_message, on_end)
        return cls(process, protocol, first)

    def send(self, message: ToEngine) -> None:
        """Queue a message; to a process that is gone it goes nowhere."""
        self._protocol.send(message)

    async def wait(self) -> str:
        """After ``on_end``: how the process ended, in words."""
        self._protocol.close()
        return describe_exit(await _ended(self._process))

    async def close(self) -> None:
        """End the process: its socket closes, and it goes after its step."""
        self._protocol.close()
        await _ended(self._process)


class _Protocol(asyncio.Protocol):
    """Frames in both directions. The first message is awaited, the others are handed to whoever listens."""

    def __init__(self) -> None:
        self.first: asyncio.Future[FromEngine | None] = asyncio.get_running_loop().create_future()
        self._buffer = MessageBuffer()
        self._transport: asyncio.Transport | None = None
        self._on_message: Callable[[FromEngine], None] | None = None
        self._on_end: Callable[[], None] | None = None
        self._is_closed = False

    def listen(self, on_message: Callable[[FromEngine], None], on_end: Callable[[], None]) -> None:
        self._on_message, self._on_end = on_message, on_end
        if self._is_closed:
            on_end()

    def send(self, message: ToEngine) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode(message))

    def close(self) -> None:
        self._on_end = None
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        for message in self._buffer.feed(data):
            if self._on_message is not None:
                self._on_message(cast(FromEngine, message))
            else:
                self.first.set_result(cast(FromEngine, message))

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closed = True
        if not self.first.done():
            self.first.set_result(None)
        if self._on_end is not None:
            self._on_end()


def _start_error(failed: StartFailed) -> Exception:
    """The engine's own error, on this side."""
    kind = getattr(errors, failed.error, None)
    if kind is errors.ModelFileError:  # its message has the path and the field already
        return ModelError(failed.message)
    if isinstance(kind, type) and issubclass(kind, OctavoError):
        return kind(failed.message)
    return EngineDiedError(f"the engine cannot be built: {failed.error}: {failed.message}")


def describe_exit(code: int) -> str:
    """An exit status in words."""
    if code >= 0:
        return f"exit status {code}"
    with contextlib.suppress(ValueError):
        return f"signal {signal.Signals(-code).name}"
    return f"signal {-code}"


async def _ended(process: subprocess.Popen[bytes]) -> int:
    """Wait for the process to end; kill it when it takes too long."""
    give_up_s = time.monotonic() + EXIT_WAIT_S
    while process.poll() is None:
        if time.monotonic() > give_up_s:
            process.kill()
        await asyncio.sleep(0.01)
    return process.returncode
