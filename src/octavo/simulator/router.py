"""Which replica gets a request.

A router knows what a load balancer in front of real engines knows: what it has sent where, whose first token has come
back, and whose last.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from octavo.errors import ConfigError
from octavo.simulator.workload import WorkloadRequest


class Router(Protocol):
    """Chooses, and hears of first and last tokens."""

    def choose(self, request: WorkloadRequest) -> int:
        """The replica for a request; from now on it counts as sent there."""

    def started(self, request: WorkloadRequest, replica: int) -> None:
        """The first token has come: the prompt is computed."""

    def finished(self, request: WorkloadRequest, replica: int) -> None:
        """The answer is complete, or the request was refused; it may have no first token."""


RUNNING_TOKENS = 32
"""What an answer under way weighs against tokens of prompts: it takes one token of each step, and reads its KV."""


class ReplicaLoads:
    """Work of each replica, in tokens: prompts that are not computed yet, and something for each unfinished answer.

    Attributes:
        tokens: by replica.
    """

    def __init__(self, num_replicas: int) -> None:
        self.tokens = [0] * num_replicas
        self._pending: dict[str, int] = {}  # by request whose first token has not come: tokens to compute

    def add(self, request: WorkloadRequest, replica: int, num_tokens: int) -> None:
        """A request with so many tokens to compute was sent."""
        self._pending[request.request_id] = num_tokens
        self.tokens[replica] += num_tokens + RUNNING_TOKENS

    def start(self, request: WorkloadRequest, replica: int) -> None:
        """Its prompt is computed."""
        self.tokens[replica] -= self._pending.pop(request.request_id)

    def remove(self, request: WorkloadRequest, replica: int) -> None:
        """It has left."""
        self.tokens[replica] -= RUNNING_TOKENS + self._pending.pop(request.request_id, 0)


class RoundRobinRouter:
    """One after the other."""

    def __init__(self, num_replicas: int) -> None:
        self._num_replicas = num_replicas
        self._next = 0

    def choose(self, request: WorkloadRequest) -> int:
        """The next in turn."""
        chosen = self._next
        self._next = (chosen + 1) % self._num_replicas
        return chosen

    def started(self, request: WorkloadRequest, replica: int) -> None:
        """Changes nothing."""

    def finished(self, request: WorkloadRequest, replica: int) -> None:
        """Changes nothing."""


class LeastLoadedRouter:
    """Least load: see :class:`ReplicaLoads`."""

    def __init__(self, num_replicas: int) -> None:
        self._loads = ReplicaLoads(num_replicas)

    def choose(self, request: WorkloadRequest) -> int:
        """The replica with the least load, the first among equals."""
        chosen = self._loads.tokens.index(min(self._loads.tokens))
        self._loads.add(request, chosen, request.num_prompt_tokens)
        return chosen

    def started(self, request: WorkloadRequest, replica: int) -> None:
        """From now on it costs little."""
        self._loads.start(request, replica)

    def finished(self, request: WorkloadRequest, replica: int) -> None:
        """It is no load any more."""
        self._loads.remove(request, replica)


class PrefixAwareRouter:
    """Least work: tokens that would have to be computed there, plus the load that is there already.

    What a replica has cached is estimated from what was sent there, least recently used forgotten first. The sum of
    both terms keeps a popular prefix from drawing everybody to one replica: as soon as a queue costs more than
    computing the prefix anew, it is computed elsewhere, and from then on two replicas have it.
    """

    def __init__(self, num_replicas: int, num_cached_tokens: int) -> None:
        """Args:
        num_cached_tokens: tokens that the KV cache of a replica holds.
        """
        self._loads = ReplicaLoads(num_replicas)
        self._capacity = num_cached_tokens
        self._known: list[OrderedDict[int, int]] = [OrderedDict() for _ in range(num_replicas)]  # id → tokens, by use
        self._num_known_tokens = [0] * num_replicas
        self._owners: dict[int, int] = {}  # id → bit set of replicas
        self._everybody = (1 << num_replicas) - 1

    def choose(self, request: WorkloadRequest) -> int:
        """The replica with the least work for this request."""
        num_prompt = request.num_prompt_tokens
        sharing, num_shared = self._everybody, 0
        stages = [(sharing, 0)]  # who knows how many leading tokens: fewer and fewer know more and more
        for content_id, count in request.segments:
            sharing &= self._owners.get(content_id, 0)
            if not sharing:
                break
            num_shared += count
            stages.append((sharing, num_shared))
        best, least, missing, seen = -1, 0, 0, 0
        loads = self._loads.tokens
        for sharing, num_shared in reversed(stages):
            if sharing == self._everybody:  # no deeper stage is worse for those who are in it, so look at all at once
                work = num_prompt - num_shared + min(loads)
                if best < 0 or work < least:
                    best, least, missing = loads.index(min(loads)), work, num_prompt - num_shared
                break
            unseen, seen = sharing & ~seen, sharing
            while unseen:
                replica = (unseen & -unseen).bit_length() - 1
                unseen &= unseen - 1
                work = num_prompt - num_shared + loads[replica]
                if best < 0 or work < least:
                    best, least, missing = replica, work, num_prompt - num_shared
        self._loads.add(request, best, missing)
        self._learn(best, request)
        return best

    def started(self, request: WorkloadRequest, replica: int) -> None:
        """From now on it costs little."""
        self._loads.start(request, replica)

    def finished(self, request: WorkloadRequest, replica: int) -> None:
        """It is no load any more."""
        self._loads.remove(request, replica)

    def _learn(self, replica: int, request: WorkloadRequest) -> None:
        """The replica will have the whole prompt, and soon the answer."""
        known, bit, owners = self._known[replica], 1 << replica, self._owners
        num_new = 0
        # The end of a prompt is used less than its beginning, so it becomes the older one.
        for content_id, count in ((request.output_id, request.num_output_tokens), *reversed(request.segments)):
            if content_id in known:
                known.move_to_end(content_id)
            else:
                known[content_id] = count
                owners[content_id] = owners.get(content_id, 0) | bit
                num_new += count
        num_known = self._num_known_tokens[replica] + num_new
        while num_known > self._capacity:
            content_id, count = known.popitem(last=False)
            num_known -= count
            owners[content_id] &= ~bit
            if not owners[content_id]:
                del owners[content_id]
        self._num_known_tokens[replica] = num_known


ROUTERS = ("round-robin", "least-loaded", "prefix-aware")


def create_router(name: str, num_replicas: int, num_cached_tokens: int) -> Router:
    """The router of that name. Raises :class:`ConfigError` if there is none."""
    if name == "round-robin":
        return RoundRobinRouter(num_replicas)
    if name == "least-loaded":
        return LeastLoadedRouter(num_replicas)
    if name == "prefix-aware":
        return PrefixAwareRouter(num_replicas, num_cached_tokens)
    raise ConfigError(f"router must be one of {', '.join(ROUTERS)}, not {name}")
