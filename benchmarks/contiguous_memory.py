"""Memory managers that give each request one contiguous piece: what engines did before pages.

They follow the three that the PagedAttention paper (Kwon et al., SOSP 2023, section 3.1) compares with; written anew.
Units are tokens. A manager places a request of known prompt and output length, or says that there is no room now.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Protocol

from request_lengths import RequestLength


class ContiguousMemory(Protocol):
    """Places requests in ``num_tokens`` slots.

    Attributes:
        name: for tables.
    """

    name: str

    def place(self, request_id: int, length: RequestLength) -> int | None:
        """Slots taken for the whole life of the request, or ``None``: it has to wait."""

    def remove(self, request_id: int) -> None:
        """The request has ended."""


class MaximumLength:
    """Every request gets as many slots as the longest may have. Equal pieces, so there is nothing to search."""

    name = "contiguous, to the maximum"

    def __init__(self, num_tokens: int, max_model_len: int) -> None:
        self._max_model_len = max_model_len
        self._num_free = num_tokens // max_model_len

    def place(self, request_id: int, length: RequestLength) -> int | None:
        if self._num_free == 0:
            return None
        self._num_free -= 1
        return self._max_model_len

    def remove(self, request_id: int) -> None:
        self._num_free += 1


class ExactLength:
    """An oracle knows how long each output will be. First fit among the gaps."""

    name = "contiguous, length known"

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens
        self._pieces: list[tuple[int, int]] = []  # start, end; ascending
        self._starts: dict[int, tuple[int, int]] = {}

    def place(self, request_id: int, length: RequestLength) -> int | None:
        size, at = length.num_tokens, 0
        for start, end in (*self._pieces, (self._num_tokens, self._num_tokens)):
            if start - at >= size:
                self._starts[request_id] = (at, at + size)
                insort(self._pieces, (at, at + size))
                return size
            at = end
        return None

    def remove(self, request_id: int) -> None:
        del self._pieces[bisect_left(self._pieces, self._starts.pop(request_id))]


class Buddies:
    """Powers of two, split and merged with their buddies (Knowlton, 1965); the length is known, rounded up."""

    name = "buddies, length known"

    def __init__(self, num_tokens: int) -> None:
        self._free: dict[int, set[int]] = {}  # size: starts
        self._placed: dict[int, tuple[int, int]] = {}
        at, size = 0, 1 << (num_tokens.bit_length() - 1)
        self._roots: set[tuple[int, int]] = set()  # pieces that have no buddy
        while size:  # the pool as powers of two, the largest first
            if num_tokens - at >= size:
                self._free.setdefault(size, set()).add(at)
                self._roots.add((at, size))
                at += size
            size //= 2

    def place(self, request_id: int, length: RequestLength) -> int | None:
        wanted = 1 << (length.num_tokens - 1).bit_length()
        fitting = [size for size, starts in self._free.items() if starts and size >= wanted]
        if not fitting:
            return None
        size = min(fitting)
        start = min(self._free[size])
        self._free[size].remove(start)
        while size > wanted:
            size //= 2
            self._free.setdefault(size, set()).add(start + size)
        self._placed[request_id] = (start, size)
        return size

    def remove(self, request_id: int) -> None:
        start, size = self._placed.pop(request_id)
        while (start, size) not in self._roots and self._buddy(start, size) in self._free.get(size, ()):
            buddy = self._buddy(start, size)
            self._free[size].remove(buddy)
            start, size = min(start, buddy), size * 2
        self._free.setdefault(size, set()).add(start)

    def _buddy(self, start: int, size: int) -> int:
        """The other half. Roots start at multiples of their size, for larger ones lie before them."""
        return start ^ size
