"""Made-up workloads, drawn from a seed: the same seed gives the same requests.

=================  ============================================================================================
``poisson``        independent requests, memoryless arrivals
``bursts``         the same load in bursts: gamma-distributed gaps
``shared-prompts`` a few long system prompts, some far more popular than others, each followed by a short question
``chat``           people in conversations: each turn repeats what was said before
``agents``         coding agents: tools and system prompt in common, then a growing history, with sub-agents
=================  ============================================================================================

Lengths are log-normal around their mean. Arrivals do not wait for answers: a person's next turn comes after reading the
answer at ``READING_TOKENS_PER_S`` and thinking, which takes far longer than a healthy server needs.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterator
from itertools import count

from octavo.simulator.workload import Segment, WorkloadRequest

SPREAD = 0.8
"""Standard deviation of the logarithm of a length."""
READING_TOKENS_PER_S = 5.0
"""A person reads about 240 words per minute (Brysbaert, 2019), that is some 300 tokens."""

_Turns = Iterator[tuple[float, tuple[Segment, ...], Segment, str]]
"""Arrival, prompt, answer, session; by arrival."""


def poisson(
    rate: float = 1.0, duration_s: float = 600.0, prompt_tokens: int = 1024, output_tokens: int = 256, seed: int = 0
) -> Iterator[WorkloadRequest]:
    """``rate`` independent requests per second."""
    return bursts(rate, duration_s, 1.0, prompt_tokens, output_tokens, seed)


def bursts(
    rate: float = 1.0,
    duration_s: float = 600.0,
    variation: float = 4.0,
    prompt_tokens: int = 1024,
    output_tokens: int = 256,
    seed: int = 0,
) -> Iterator[WorkloadRequest]:
    """Gaps with standard deviation ``variation`` times their mean; 1 is Poisson, more is burstier."""
    draw, ids = random.Random(seed), count()
    for number, now_s in enumerate(_arrivals(draw, rate, duration_s, variation)):
        prompt = ((next(ids), _length(draw, prompt_tokens)),)
        yield WorkloadRequest(f"g{number}", now_s, prompt, _length(draw, output_tokens), next(ids))


def shared_prompts(
    rate: float = 1.0,
    duration_s: float = 600.0,
    num_prompts: int = 32,
    shared_tokens: int = 2048,
    question_tokens: int = 128,
    output_tokens: int = 256,
    seed: int = 0,
) -> Iterator[WorkloadRequest]:
    """System prompt number ``k`` is ``1/k`` as popular as the first (Zipf)."""
    draw, ids = random.Random(seed), count()
    prompts = [(next(ids), _length(draw, shared_tokens)) for _ in range(num_prompts)]
    weights = [1 / (rank + 1) for rank in range(num_prompts)]
    for number, now_s in enumerate(_arrivals(draw, rate, duration_s, 1.0)):
        (shared,) = draw.choices(prompts, weights)
        prompt = (shared, (next(ids), _length(draw, question_tokens)))
        yield WorkloadRequest(f"g{number}", now_s, prompt, _length(draw, output_tokens), next(ids))


def chat(
    users: int = 100,
    duration_s: float = 600.0,
    think_s: float = 30.0,
    num_turns: float = 6.0,
    system_tokens: int = 500,
    question_tokens: int = 80,
    output_tokens: int = 300,
    max_context: int = 32768,
    seed: int = 0,
) -> Iterator[WorkloadRequest]:
    """``users`` people, each in one conversation after the other.

    A conversation has ``num_turns`` turns on average (geometric) and ends early before it outgrows ``max_context``.
    People come in evenly over the length of a conversation, so the load rises for so long and is steady from then on.
    """
    draw, ids = random.Random(seed), count()
    system = (next(ids), system_tokens)

    def person(number: int) -> _Turns:
        now_s = draw.uniform(0, num_turns * (output_tokens / READING_TOKENS_PER_S + think_s))
        history, session = [system], f"u{number}.0"
        for conversation in count(1):
            while True:
                question, answer = _length(draw, question_tokens), _length(draw, output_tokens)
                if len(history) > 1 and sum(size for _, size in history) + question + answer > max_context:
                    break
                history.append((next(ids), question))
                reply = (next(ids), answer)
                yield now_s, tuple(history), reply, session
                history.append(reply)
                now_s += answer / READING_TOKENS_PER_S + draw.expovariate(1 / think_s)
                if draw.random() < 1 / num_turns:
                    break
            history, session = [system], f"u{number}.{conversation}"

    return _merged([person(number) for number in range(users)], duration_s)


def agents(
    rate: float = 0.05,
    duration_s: float = 3600.0,
    num_steps: float = 20.0,
    tool_s: float = 10.0,
    shared_tokens: int = 16000,
    task_tokens: int = 2000,
    result_tokens: int = 800,
    output_tokens: int = 250,
    sub_agent_share: float = 0.05,
    max_context: int = 131072,
    seed: int = 0,
) -> Iterator[WorkloadRequest]:
    """``rate`` new sessions per second, ``num_steps`` model calls each (geometric), a tool call between two of them.

    After a share of the steps a sub-agent starts: same tools, own task, own history, while its parent waits for it.
    """
    draw, ids = random.Random(seed), count()
    shared = (next(ids), shared_tokens)

    def agent(now_s: float, steps: float, session: str) -> _Turns:
        history = [shared, (next(ids), _length(draw, task_tokens))]
        while sum(size for _, size in history) + 4 * output_tokens < max_context:
            reply = (next(ids), _length(draw, output_tokens))
            yield now_s, tuple(history), reply, session
            now_s += draw.expovariate(1 / tool_s)
            if draw.random() < 1 / steps:
                return
            if steps > 2 and draw.random() < sub_agent_share:
                for turn in agent(now_s, steps / 2, session):
                    yield turn
                    now_s = turn[0]
                now_s += draw.expovariate(1 / tool_s)
            history += [reply, (next(ids), _length(draw, result_tokens))]

    starts = enumerate(_arrivals(draw, rate, duration_s, 1.0))
    return _merged([agent(now_s, num_steps, f"a{number}") for number, now_s in starts], duration_s)


GENERATORS: dict[str, Callable[..., Iterator[WorkloadRequest]]] = {
    "poisson": poisson,
    "bursts": bursts,
    "shared-prompts": shared_prompts,
    "chat": chat,
    "agents": agents,
}
"""By the name that the command line uses."""


# ---- parts ----------------------------------------------------------------------------------------------------------


def _arrivals(draw: random.Random, rate: float, duration_s: float, variation: float) -> Iterator[float]:
    shape = 1 / variation**2
    now_s = draw.gammavariate(shape, 1 / (rate * shape))
    while now_s < duration_s:
        yield now_s
        now_s += draw.gammavariate(shape, 1 / (rate * shape))


def _length(draw: random.Random, mean: float) -> int:
    return max(1, round(draw.lognormvariate(math.log(mean) - SPREAD**2 / 2, SPREAD)))


def _merged(sources: list[_Turns], duration_s: float) -> Iterator[WorkloadRequest]:
    """One stream of many, by arrival; each is asked for its next turn only when its turn has come."""
    heads = [(turn, index) for index, source in enumerate(sources) if (turn := next(source, None)) is not None]
    heapq.heapify(heads)
    for number in count():
        if not heads or heads[0][0][0] >= duration_s:
            return
        (now_s, prompt, (output_id, num_output), session), index = heads[0]
        yield WorkloadRequest(f"g{number}", now_s, prompt, num_output, output_id, session)
        following = next(sources[index], None)
        if following is None:
            heapq.heappop(heads)
        else:
            heapq.heapreplace(heads, (following, index))
