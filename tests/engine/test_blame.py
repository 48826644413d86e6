"""Who killed the engine."""

from __future__ import annotations

from octavo.engine.blame import Blame


def die(*present: Blame) -> None:
    """A process ends under these requests, and the next one starts."""
    Blame.settle(present)
    for blame in present:
        blame.has_progressed = False


def test_alone_and_without_a_token_the_third_death_proves_it() -> None:
    blame = Blame()
    for proven in (False, False, True):
        die(blame)
        assert blame.is_proven is proven


def test_a_token_between_deaths_is_an_alibi() -> None:
    blame = Blame()
    for _ in range(10):
        die(blame)
        blame.progress()
        assert not blame.is_proven


def test_its_death_at_a_later_token_counts_from_there() -> None:
    """It killed the process at its fifth token: it had progressed the first time, and never again."""
    blame = Blame()
    blame.progress()
    die(blame)
    assert (blame.num_deaths, blame.num_alone) == (1, 1)
    die(blame)
    die(blame)
    assert blame.is_proven


def test_among_others_nobody_is_proven_but_the_search_begins() -> None:
    blames = [Blame() for _ in range(5)]
    die(*blames)
    assert not Blame.is_searching(blames)
    die(*blames)
    assert Blame.is_searching(blames)
    die(*blames)
    die(*blames)
    assert not any(blame.is_proven for blame in blames)


def test_the_only_one_without_a_token_is_the_suspect() -> None:
    innocent, guilty = Blame(), Blame()
    die(innocent, guilty)
    die(innocent, guilty)
    for _ in range(3):
        innocent.progress()
        die(innocent, guilty)
    assert guilty.is_proven
    assert not innocent.is_proven


def test_progress_ends_the_search() -> None:
    blames = [Blame(), Blame()]
    die(*blames)
    die(*blames)
    for blame in blames:
        blame.progress()
    assert not Blame.is_searching(blames)


def search(blames: list[Blame], num_turns: int, guilty: Blame | None = None) -> None:
    """A process that continues one at a time and dies in a turn: the guilty one's, or after so many."""
    sent = []
    for number, blame in enumerate(sorted(blames, key=lambda each: each.turn)):
        sent.append(blame)
        if blame is guilty or number == num_turns:
            break
        blame.progress()
    die(*sent)


def test_deaths_from_outside_hit_whoever_is_next_and_prove_nothing() -> None:
    """However soon after its start each process is killed."""
    for num_turns in range(5):
        blames = [Blame() for _ in range(16)]
        for _ in range(2 * (16 - num_turns)):  # twice for each that does not get its token every time
            search(blames, num_turns)
        assert not any(blame.is_proven for blame in blames)


def test_the_guilty_one_dies_whenever_its_turn_comes() -> None:
    blames = [Blame() for _ in range(16)]
    for _ in range(3):
        search(blames, 16, guilty=blames[5])
    assert [blame.is_proven for blame in blames] == [blame is blames[5] for blame in blames]
