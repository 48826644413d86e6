"""The engine's end of its socket."""

from __future__ import annotations

import fcntl
import resource
import socket
from collections.abc import Iterator

import pytest

from octavo.engine.messages import EngineChannel, FinishRequest, encode

HIGH = 1500
"""A descriptor as a server with many connections hands it down."""


@pytest.fixture
def room_for_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft <= HIGH:
        resource.setrlimit(resource.RLIMIT_NOFILE, (HIGH + 1, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_descriptors_of_busy_servers_work(room_for_files: None) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.socket(fileno=fcntl.fcntl(theirs, fcntl.F_DUPFD, HIGH)) as high:
        channel = EngineChannel(high)
        assert channel.receive(0.0) == []
        ours.sendall(encode(FinishRequest(5, "abort")))
        assert channel.receive(None) == [FinishRequest(5, "abort")]
        ours.close()
        assert channel.receive(None) is None
