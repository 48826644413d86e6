"""Stop strings in a stream of pieces, against the same question asked of the whole text."""

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.tokenization.stop_strings import StopStringMatcher


def run(pieces, stop, include=False, min_pieces=0):
    """(text of each delta, matched): as the detokenizer drives the matcher."""
    matcher = StopStringMatcher(stop, include_in_output=include)
    shown = []
    for number, piece in enumerate(pieces, start=1):
        shown.append(matcher.feed(piece, may_stop=number > min_pieces))
        if matcher.matched is not None:
            return shown, matcher.matched
    return [*shown, matcher.flush()], None


def expected(pieces, stop, include, min_pieces):
    """The slow twin: look at all the text anew after each piece."""
    text = ""
    for number, piece in enumerate(pieces, start=1):
        before = len(text)
        text += piece
        found = [
            (begin, -len(string), string)
            for string in stop
            for begin in range(len(text))
            if text.startswith(string, begin) and begin + len(string) > before
        ]
        if found and number > min_pieces:
            begin, minus_length, string = min(found)
            return text[: begin - minus_length if include else begin], string
    return text, None


@settings(max_examples=1500, deadline=None)
@given(
    pieces=st.lists(st.text("ab", max_size=5), max_size=12),
    stop=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3),
    include=st.booleans(),
    min_pieces=st.integers(0, 3),
)
def test_the_stream_ends_as_the_whole_text_says(pieces, stop, include, min_pieces):
    shown, matched = run(pieces, stop, include, min_pieces)
    assert ("".join(shown), matched) == expected(pieces, stop, include, min_pieces)


@settings(max_examples=500, deadline=None)
@given(
    pieces=st.lists(st.text("ab", max_size=4), max_size=8),
    stop=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_text_is_held_exactly_as_long_as_a_stop_string_may_begin_in_it(pieces, stop):
    matcher = StopStringMatcher(stop)
    text, shown = "", ""
    for piece in pieces:
        text += piece
        shown += matcher.feed(piece)
        if matcher.matched is not None:
            return
        held = max(length for string in stop for length in range(len(string)) if text.endswith(string[:length]))
        assert shown == text[: len(text) - held]


def test_of_several_in_one_piece_the_first_then_the_longest_counts():
    assert run(["say abcd"], ["cd", "ab", "abc"]) == (["say "], "abc")


def test_the_one_that_completes_in_an_earlier_piece_counts():
    assert run(["xab", "cd"], ["abcd", "b"]) == (["xa"], "b")


def test_a_match_that_does_not_count_may_be_the_beginning_of_one_that_does():
    assert run(["a", "b", "a", "b"], ["ab"], min_pieces=2) == (["", "ab", "", ""], "ab")
    assert run(["aa", "a"], ["aa"], min_pieces=1) == (["a", ""], "aa")


def test_repetitive_stop_strings_cost_no_more_than_their_text():
    """A stop string of 20,000 equal characters, and a text that all but spells it, again and again."""
    matcher = StopStringMatcher(["a" * 20_000 + "b"])
    begin = time.process_time()
    shown = sum(len(matcher.feed("aaaaa")) for _ in range(20_000))
    assert shown == 80_000
    assert time.process_time() - begin < 2.0
