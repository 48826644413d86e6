"""How often streams send."""

from __future__ import annotations

import asyncio

from octavo.server.sse import MAX_EVENTS_PER_S, Pace


def events_in(seconds: float, num_streams: int) -> int:
    """Events that streams send which always have something to say."""

    async def stream(pace: Pace, end_s: float) -> int:
        loop, last_s, count = asyncio.get_running_loop(), 0.0, 0
        while loop.time() < end_s:
            await pace.keep(last_s)
            last_s = loop.time()
            count += 1
            await asyncio.sleep(0)
        return count

    async def all_streams() -> int:
        pace = Pace()
        pace.num_streams = num_streams
        end_s = asyncio.get_running_loop().time() + seconds
        return sum(await asyncio.gather(*(stream(pace, end_s) for _ in range(num_streams))))

    return asyncio.run(all_streams())


def test_all_streams_together_keep_the_limit() -> None:
    for num_streams in (1, 50):
        assert events_in(0.3, num_streams) <= 0.3 * MAX_EVENTS_PER_S + 2 * num_streams


def test_the_first_event_and_late_ones_do_not_wait() -> None:
    async def waited_s(last_s_ago: float) -> float:
        pace, loop = Pace(), asyncio.get_running_loop()
        pace.num_streams = 2000
        began = loop.time()
        await pace.keep(began - last_s_ago)
        return loop.time() - began

    assert asyncio.run(waited_s(1.5)) < 0.5
    assert asyncio.run(waited_s(0.7)) >= 0.29
