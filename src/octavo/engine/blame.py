"""Which request killed the engine's process?

Answers depend on their requests alone, so a request that kills the process does so again at the same token. Whoever
has got a token since the process started is therefore innocent of the next death; the others are suspects. After two
deaths among the same suspects they are continued one at a time, each when the one before has got its token, until one
dies with nobody else to suspect. What dies so three times is guilty. Whoever has died so waits until all others have
had their turn: a guilty one dies again when its own comes, but deaths from outside, which hit whoever is next, each hit
another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

DEATHS_TO_SEARCH = 2
DEATHS_TO_PROVE = 3


class Blame:
    """What is known against one request.

    Attributes:
        has_progressed: it got a token from the process that runs now.
        num_deaths: processes that died under it since it last got a token.
        num_alone: those of them in which nobody else was suspect.
    """

    __slots__ = ("has_progressed", "num_alone", "num_deaths")

    def __init__(self) -> None:
        self.has_progressed = False
        self.num_deaths = 0
        self.num_alone = 0

    def progress(self) -> None:
        """It got a token."""
        if not self.has_progressed:
            self.has_progressed = True
            self.num_deaths = self.num_alone = 0

    @property
    def is_proven(self) -> bool:
        """Whether it is the one."""
        return self.num_alone >= DEATHS_TO_PROVE

    @property
    def turn(self) -> tuple[int, int]:
        """Smaller is continued sooner."""
        return (self.num_alone, -self.num_deaths)

    @staticmethod
    def settle(present: Sequence[Blame]) -> None:
        """The process died while it had these requests.

        One that has progressed may have died of its next token: this is its first death there.
        """
        num_new = sum(not blame.has_progressed for blame in present)
        for blame in present:
            blame.num_deaths += 1
            if len(present) == 1 or (num_new == 1 and not blame.has_progressed):
                blame.num_alone += 1

    @staticmethod
    def is_searching(blames: Iterable[Blame]) -> bool:
        """Whether suspects are to be continued one at a time."""
        return any(blame.num_deaths >= DEATHS_TO_SEARCH for blame in blames)
