"""How full the pool will become if nobody else is admitted.

Every running request takes one more block each ``block_size`` steps until it ends, and then gives all back. Time is cut
into bins of ``block_size`` steps; each bin knows how many requests are expected to end in it and how many blocks they
will then hold. Walking over the bins gives the expected peak; a request is admitted only if the peak stays within the
pool::

    blocks            ╭──╮ peak
    in use        ╭───╯  │
              ╭───╯      ╰──╮
          ────╯             ╰───
          now   bins of block_size steps →

Without this, a burst of requests is admitted while all are short, and then all grow at once: work is thrown away in
preemptions. How long an output will be is not known; the guess is the mean of the recent outputs that came as far, at
most what the request allows. To admit by the expected peak is the idea of "Past-Future Scheduler for LLM Serving under
SLA Guarantees" (Gong et al., ASPLOS 2025); the bins are ours, so that a question costs no more than the longest output
has blocks.
"""

from __future__ import annotations

from octavo.request import Request
from octavo.scheduler.output_lengths import OutputLengths, next_bin

MARGIN = 0.05
"""Share of the pool kept for what the guess gets wrong."""


class MemoryForecast:
    """Expected ends of the running requests.

    Attributes:
        lengths: how long outputs become.
    """

    def __init__(self, block_size: int) -> None:
        self.lengths = OutputLengths()
        self._block_size = block_size
        self._ends: dict[int, list[int]] = {}  # bin: number of requests, blocks they will hold
        self._entries: dict[str, tuple[int, int]] = {}  # by request: bin, blocks
        self._reviews: dict[str, int] = {}  # by request: number of output tokens at which to look again
        self._shared: dict[str, int] = {}  # by request: blocks that stay with others

    def add(self, request: Request, step: int, num_shared_blocks: int) -> None:
        """A request starts in ``step``; ``num_shared_blocks`` of its blocks will stay with others."""
        self._shared[request.request_id] = num_shared_blocks
        self._plan(request, step)

    def update(self, request: Request, step: int) -> None:
        """A request took a block in ``step``: look again when it may end, if it came so far that the guess changes."""
        if request.num_output_tokens < self._reviews[request.request_id]:
            return
        self._leave(request.request_id)
        self._plan(request, step)

    def remove(self, request: Request) -> None:
        """A request gave its blocks back."""
        self._leave(request.request_id)
        del self._shared[request.request_id], self._reviews[request.request_id]

    def fits(self, candidate: Request, num_new_blocks: int, num_held: int, num_blocks: int, step: int) -> bool:
        """Whether the expected peak stays in the pool if ``candidate`` starts now with ``num_new_blocks`` blank blocks.

        Args:
            num_held: blocks in use now, of ``num_blocks``.
        """
        return self._peak(num_held, candidate, num_new_blocks, step) <= num_blocks * (1 - MARGIN)

    def _peak(self, num_held: int, candidate: Request, num_new_blocks: int, step: int) -> int:
        """Most blocks ever in use if ``candidate`` started now."""
        num_shared = -(-candidate.num_tokens // self._block_size) - num_new_blocks
        expected = self.lengths.expected(candidate.num_output_tokens)
        own_bin, own_blocks = self._expectation(candidate, expected, step, num_shared)
        ends = [(bin_, count, num_blocks) for bin_, (count, num_blocks) in self._ends.items()]
        ends.append((own_bin, 1, own_blocks))
        now, num_alive = step // self._block_size, len(self._entries) + 1
        num_blocks = peak = num_held + num_new_blocks  # without what the living ones grow from now on
        for bin_, num_ends, num_freed in sorted(ends):
            num_grown = max(bin_ - now, 0)
            peak = max(peak, num_blocks + num_alive * num_grown)
            num_blocks -= num_freed - num_ends * num_grown
            num_alive -= num_ends
        return peak

    def _expectation(self, request: Request, num_output: int, step: int, num_shared_blocks: int) -> tuple[int, int]:
        """In which bin the request ends with ``num_output`` tokens, and how many blocks it gives back then."""
        num_total = min(request.num_prompt_tokens + num_output, request.max_tokens)
        num_blocks = -(-request.num_tokens // self._block_size)
        num_more = max(-(-num_total // self._block_size) - num_blocks, 0)
        return step // self._block_size + num_more, num_blocks + num_more - num_shared_blocks

    def _plan(self, request: Request, step: int) -> None:
        num_output, request_id = request.num_output_tokens, request.request_id
        expected = self.lengths.expected(num_output)
        self._reviews[request_id] = min(next_bin(num_output), expected)
        self._enter(request_id, *self._expectation(request, expected, step, self._shared[request_id]))

    def _enter(self, request_id: str, bin_: int, num_blocks: int) -> None:
        self._entries[request_id] = (bin_, num_blocks)
        ends = self._ends.setdefault(bin_, [0, 0])
        ends[0] += 1
        ends[1] += num_blocks

    def _leave(self, request_id: str) -> None:
        bin_, num_blocks = self._entries.pop(request_id)
        ends = self._ends[bin_]
        ends[0] -= 1
        ends[1] -= num_blocks
        if ends[0] == 0:
            del self._ends[bin_]
