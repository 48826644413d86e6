"""The smallest fleet that is good enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from octavo.errors import ConfigError

MAX_REPLICAS = 4096


@dataclass(frozen=True, slots=True)
class Trial:
    """A fleet that was tried.

    Attributes:
        goodput_share: share of the requests that met the service level; ``None``: given up early, too many missed it.
    """

    num_replicas: int
    goodput_share: float | None
    is_enough: bool


def smallest_fleet(try_fleet: Callable[[int], Trial], on_trial: Callable[[Trial], None] = lambda _: None) -> int:
    """Double until it is enough, then bisect between the last two.

    More replicas are taken to be no worse. With routing by prefix that is nearly, not exactly so, and the answer is
    then one of the sizes where "not enough" turns to "enough".

    Raises:
        ConfigError: not even ``MAX_REPLICAS`` are enough.
    """

    def is_enough(num_replicas: int) -> bool:
        trial = try_fleet(num_replicas)
        on_trial(trial)
        return trial.is_enough

    high = 1
    while not is_enough(high):
        if high >= MAX_REPLICAS:
            raise ConfigError(f"even {high} replicas miss the service level; it may be out of reach for one request")
        high *= 2
    low = high // 2  # not enough, or 0
    while high - low > 1:
        middle = (low + high) // 2
        if is_enough(middle):
            high = middle
        else:
            low = middle
    return high
