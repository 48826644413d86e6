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
