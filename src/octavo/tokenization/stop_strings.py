"""Finds stop strings in text that arrives piece by piece, and keeps back what may be the beginning of one."""

from __future__ import annotations

from collections.abc import Sequence


class StopStringMatcher:
    """Watches a stream of text for several stop strings.

        fed so far:   … emitted … | held |        held: the longest end that begins some stop string
                                  ^ the earliest place where a stop string may yet turn out to begin

    The piece in which a stop string completes ends the stream. If several complete in the same piece, the one that
    begins first counts; of those, the longest. Work per character is constant, however the strings repeat themselves.

    Attributes:
        matched: the stop string that ended the stream; ``None`` until then.
    """

    def __init__(self, stop: Sequence[str], *, include_in_output: bool = False) -> None:
        self._followers = [_PrefixFollower(string) for string in dict.fromkeys(stop)]
        self._first_characters = frozenset(string[0] for string in stop)
        self._include_in_output = include_in_output
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str, *, may_stop: bool = True) -> str:
        """Take the next piece; returns the text that is now certain to be output.

        Args:
            may_stop: whether a stop string that completes in this piece counts; if not, it is text like any other.
        """
        assert self.matched is None, f"text after the stop string {self.matched!r}"
        if not self._held and not self._include_in_output and self._first_characters.isdisjoint(text):
            return text
        best: tuple[int, int, str] | None = None  # begin, minus length, string: the least one counts
        for follower in self._followers:
            end = follower.advance(text, may_stop)
            if end is not None:
                length = len(follower.string)
                candidate = (end - length, -length, follower.string)
                best = candidate if best is None else min(best, candidate)
        if best is not None:
            return self._stop(text, *best)
        if self._include_in_output:
            return text  # whether it turns out to be a stop string or not, it is output
        known = self._held + text
        num_certain = len(known) - max(follower.num_matched for follower in self._followers)
        self._held = known[num_certain:]
        return known[:num_certain]

    def flush(self) -> str:
        """The stream is over: what was kept back is text after all."""
        held, self._held = self._held, ""
        return held

    def _stop(self, text: str, begin: int, minus_length: int, string: str) -> str:
        """``begin`` counts from the start of ``text``; it is negative where the string began in what is held."""
        self.matched = string
        if self._include_in_output:
            return text[: begin - minus_length]
        known = self._held + text
        num_certain = len(self._held) + begin
        self._held = ""
        return known[:num_certain]


class _PrefixFollower:
    """How much of one string the end of a stream spells: the automaton of Knuth, Morris and Pratt (1977).

    Attributes:
        num_matched: length of the longest end of the stream that begins ``string``; never all of it.
    """

    __slots__ = ("_borders", "num_matched", "string")

    def __init__(self, string: str) -> None:
        self.string = string
        self.num_matched = 0
        # borders[n]: length of the longest proper end of string[:n] that also begins it.
        self._borders = [0, 0]
        for character in string[1:]:
            border = self._borders[-1]
            while border and string[border] != character:
                border = self._borders[border]
            self._borders.append(border + 1 if string[border] == character else 0)

    def advance(self, text: str, may_complete: bool) -> int | None:
        """Follow ``text``; returns the index after the first completion, ``None`` if there is none that counts."""
        string, borders, matched = self.string, self._borders, self.num_matched
        if not matched and string[0] not in text:
            return None
        completed_at = None
        for index, character in enumerate(text, start=1):
            while matched and string[matched] != character:
                matched = borders[matched]
            if string[matched] == character:
                matched += 1
            if matched == len(string):
                matched = borders[matched]
                if may_complete:
                    completed_at = index
                    break
        self.num_matched = matched
        return completed_at
