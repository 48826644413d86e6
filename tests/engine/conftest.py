"""A tiny model with a tokenizer, and engines over it whose pools are checked when a test ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.tiny_llm import tiny_model

from octavo import LLM


def assert_drained(llm: LLM) -> None:
    """All accounts balance, and nothing is left of any request."""
    scheduler = llm.engine.core.scheduler
    scheduler.check_integrity()
    assert not llm.engine.has_unfinished_requests
    assert not scheduler.running
    assert len(scheduler.waiting) == 0
    pool = scheduler.manager.block_pool
    assert pool.get_num_free_blocks() == pool.num_blocks


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny Llama."""
    return str(tiny_model(tmp_path_factory.mktemp("tiny") / "llama"))


@pytest.fixture
def make_llm(tiny: str) -> Iterator[Callable[..., LLM]]:
    """Engines over the tiny model; at the end of the test they must be empty again."""
    made: list[LLM] = []

    def make(**keywords: Any) -> LLM:
        llm = LLM(tiny, **{"num_threads": 1, "num_blocks": 64, "block_size": 8, **keywords})
        made.append(llm)
        return llm

    yield make
    for llm in made:
        assert_drained(llm)


@pytest.fixture
def llm(make_llm: Callable[..., LLM]) -> LLM:
    return make_llm()
