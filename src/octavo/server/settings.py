"""How the server behaves, as a value."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from octavo.errors import ConfigError
from octavo.server.auth import ApiKeys


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """All that is not the engine's.

    Attributes:
        host, port: where to listen; port 0 takes a free one.
        model_names: what clients may call the model; the first one stands in answers.
        api_keys: who may ask; none: everybody.
        max_body_bytes: a larger body is refused with 413.
        max_prompt_tokens: a longer prompt is refused with 400; ``None``: what fits the model.
        max_connections: one more takes the place of one that asks nothing, or is refused with 503.
        head_timeout_s: half a request head that is not whole by then is refused with 408; a silent peer is closed.
        body_timeout_s: a body that has not come by then is refused with 408.
        send_timeout_s: a client that has taken nothing for so long is gone.
        drain_s: after SIGTERM, requests under way get so long to finish.
        stall_s: work that waits so long without a finished step makes ``/ready`` say 503.
        ssl_certfile, ssl_keyfile: serve HTTPS with these.
        cors_origins: origins whose pages may call the API from a browser.
        log_requests: write the text of requests and answers to the log.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    model_names: tuple[str, ...] = ("default",)
    api_keys: ApiKeys = field(default_factory=ApiKeys)
    max_body_bytes: int = 16 * 2**20
    max_prompt_tokens: int | None = None
    max_connections: int = 4096
    head_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    send_timeout_s: float = 60.0
    drain_s: float = 30.0
    stall_s: float = 10.0
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    cors_origins: tuple[str, ...] = ()
    log_requests: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise ConfigError(f"port must be between 0 and 65535, not {self.port}")
        limits = ("max_body_bytes", "max_prompt_tokens", "max_connections")
        times = ("head_timeout_s", "body_timeout_s", "send_timeout_s", "stall_s")
        for name in limits + times:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be above 0, not {value}")
        if not self.drain_s >= 0:
            raise ConfigError(f"drain_s must be at least 0, not {self.drain_s}")
        if not self.model_names or not all(self.model_names):
            raise ConfigError("the model needs a name of at least one character")
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise ConfigError("HTTPS needs both a certificate and its key")
        for path in (self.ssl_certfile, self.ssl_keyfile):
            if path is not None and not path.is_file():
                raise ConfigError(f"{path}: there is no such file")
