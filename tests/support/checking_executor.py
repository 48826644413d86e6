"""An executor with a pretend model that notices every fault of the memory.

Its "KV" of a token is the token itself, kept in slots by block id as a real cache would. The "attention" of a token
reads its whole prefix back through the block table and compares it with the request's tokens; the next token is a
function of what was read, so one wrong block changes the answer.
"""

from __future__ import annotations

from octavo.request import Request
from octavo.scheduler.output import ExecutorOutput, SchedulerOutput

POISON = -1


class CheckingExecutor:
    """Follows the same messages as the real executor. Attribute ``vocab_size``: tokens lie below it."""

    def __init__(self, num_blocks: int, block_size: int, vocab_size: int = 50) -> None:
        self.block_size = block_size
        self.vocab_size = vocab_size
        self.num_computed_tokens = 0
        self._slots = [[POISON] * block_size for _ in range(num_blocks)]
        self._tables: dict[int, list[int]] = {}

    def submit(self, scheduled: SchedulerOutput) -> CheckingExecutor:
        for admission in scheduled.admissions:
            self._tables[admission.slot] = list(admission.block_ids)
        for update in scheduled.table_updates:
            table = self._tables[update.slot]
            end = update.index + len(update.block_ids)
            table.extend([POISON] * (end - len(table)))
            table[update.index : end] = update.block_ids
        for chunk in scheduled.chunks:
            for fork in chunk.forks:
                self._tables[fork.slot] = list(self._tables[chunk.request.slot])
        targets = [target for _, target in scheduled.block_copies]
        assert len(set(targets)) == len(targets), scheduled.block_copies
        assert not set(targets) & {source for source, _ in scheduled.block_copies}, scheduled.block_copies
        for source, target in scheduled.block_copies:
            self._slots[target] = list(self._slots[source])
        runs = [(request, request.num_computed_tokens, 1) for request in scheduled.decodes]
        runs += [(chunk.request, chunk.start, chunk.num_tokens) for chunk in scheduled.chunks]
        for request, start, count in runs:
            self._write(request, start, count)
        self._output = ExecutorOutput([self._next_token(request) for request in scheduled.sampling_requests])
        for request, start, count in runs:
            assert self._read(request, start + count) == request.token_ids[: start + count].tolist(), request
        self.num_computed_tokens += sum(count for *_, count in runs)
        return self

    def result(self) -> ExecutorOutput:
        return self._output

    def _write(self, request: Request, start: int, count: int) -> None:
        table = self._tables[request.slot]
        for position in range(start, start + count):
            index, offset = divmod(position, self.block_size)
            self._slots[table[index]][offset] = request.token_ids[position]

    def _read(self, request: Request, num_tokens: int) -> list[int]:
        table = self._tables[request.slot]
        slots = [slot for block_id in table[: -(-num_tokens // self.block_size)] for slot in self._slots[block_id]]
        return slots[:num_tokens]

    def _next_token(self, request: Request) -> int:
        return next_token(self._read(request, request.num_tokens), request.seed, self.vocab_size)


def next_token(prefix: list[int], seed: int, vocab_size: int) -> int:
    """What the pretend model says after ``prefix``."""
    state = seed + 17
    for token_id in prefix:
        state = (state * 31 + token_id + 1) % 1_000_003
    return state % vocab_size


def solo_answer(request: Request, vocab_size: int = 50) -> list[int]:
    """The output of a finished request as it is without any engine."""
    tokens = request.token_ids[: request.num_prompt_tokens].tolist()
    output: list[int] = []
    while len(tokens) < request.max_tokens and not (output and output[-1] in request.stop_ids):
        output.append(next_token(tokens, request.seed, vocab_size))
        tokens.append(output[-1])
    return output
