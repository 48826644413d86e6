"""Traces and generators: what each format says, and what all workloads have in common."""

from __future__ import annotations

import gzip
import itertools
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.simulator.generators import GENERATORS, agents, bursts, chat, poisson, shared_prompts
from octavo.simulator.workload import WorkloadRequest, scale_rate
from octavo.simulator.workload_source import open_workload, overlay

Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(name: str, text: str) -> str:
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return str(path)

    return write_file


MOONCAKE = [
    {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [7, 8]},
    {"timestamp": 3000, "input_length": 1600, "output_length": 9, "hash_ids": [7, 9, 10, 11]},
]


def lines(rows: list[dict[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_mooncake(write: Write, name: str) -> None:
    first, second = open_workload(write(name, lines(MOONCAKE)))
    assert (first.arrival_s, list(first.segments), first.num_output_tokens) == (0.0, [(7, 512), (8, 488)], 5)
    assert (second.arrival_s, list(second.segments)) == (3.0, [(7, 512), (9, 512), (10, 512), (11, 64)])
    assert first.num_prompt_tokens == 1000
    assert first.output_id != second.output_id


def test_coding_agents_share_tools_of_equal_length_and_nothing_else(write: Write) -> None:
    turns = [
        {"t": 0.0, "in": 300, "out": 10, "stop": "tool_use", "sub": None, "runs": [[1, 4]]},
        {"t": 9.5, "in": 350, "out": 20, "stop": "end_turn", "sub": None, "runs": [[1, 3], [9, 3]]},
    ]
    sessions = [
        {"id": name, "block": 64, "tool": tool, "system": 0, "requests": turns}
        for name, tool in (("a", 130), ("b", 130), ("c", 200))
    ]
    requests = list(open_workload(write("sessions.jsonl", lines(sessions))))
    assert [request.arrival_s for request in requests] == sorted(request.arrival_s for request in requests)
    a, b, c = (sorted(r.segments for r in requests if r.session == name) for name in "abc")
    for own in (a, b, c):
        assert sorted(sum(size for _, size in segments) for segments in own) == [300, 350]
        assert len(set(own[0]) & set(own[1])) == 3  # three whole blocks; the fourth id differs
    heads = [set(own[0][:2]) for own in (a, b, c)]
    assert heads[0] == heads[1] != heads[2]
    assert not set(a[0][2:]) & set(b[0][2:])


def test_azure(write: Write) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )
    first, second = open_workload(write("azure.csv", text))
    assert (first.num_prompt_tokens, first.num_output_tokens, first.arrival_s) == (374, 44, 0.0)
    assert second.arrival_s == pytest.approx(4.314579)
    assert not {content for content, _ in first.segments} & {content for content, _ in second.segments}


def test_burst_gpt_leaves_out_failed_requests(write: Write) -> None:
    text = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n"
        "45,ChatGPT,1087,0,1087,Conversation log\n"
        "118,GPT-4,417,276,693,API log\n"
    )
    first, second = open_workload(write("burst.csv", text))
    assert (first.arrival_s, first.num_prompt_tokens, first.num_output_tokens) == (0.0, 472, 18)
    assert (second.arrival_s, second.num_prompt_tokens, second.num_output_tokens) == (113.0, 417, 276)


def test_share_gpt_turns_repeat_what_was_said(write: Write) -> None:
    turns = [("human", "a" * 40), ("gpt", "b" * 80), ("human", "c" * 12), ("gpt", "d" * 4)]
    talk = {"id": "x", "conversations": [{"from": who, "value": text} for who, text in turns]}
    first, second = open_workload(write("sharegpt.json", json.dumps([talk, {"id": "empty", "conversations": []}])))
    assert [size for _, size in first.segments] == [10]
    assert first.num_output_tokens == 20
    assert list(second.segments) == [*first.segments, (first.output_id, 20), (second.segments[-1][0], 3)]
    assert first.text == "a" * 40
    assert second.text == "\n\n".join(("a" * 40, "b" * 80, "c" * 12))


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("trace.jsonl", "hello", "is no trace that Octavo knows"),
        ("trace.jsonl", '{"hash_ids": [1]}\n', "line 1: KeyError: 'timestamp'"),
        ("trace.jsonl", lines(MOONCAKE) + "{", "line 3: JSONDecodeError"),
        ("trace.jsonl", lines([{**MOONCAKE[0], "hash_ids": [1]}]), "line 1: 1000 tokens in 1 blocks of 512"),
        ("azure.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n", "line 2: ValueError"),
        ("sharegpt.json", "[1]", "is not ShareGPT's JSON"),
    ],
)
def test_a_damaged_file_is_an_error_that_says_where(write: Write, name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        list(open_workload(write(name, text)))
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "source, message",
    [
        ("nowhere.jsonl", "there is no trace file nowhere.jsonl"),
        ("chat:people=3", "chat has no number 'people'; it has users, duration_s"),
        ("chat:users=many", "users must be a number, not 'many'"),
        ("chat:users=1.5", "users must be a whole number"),
        ("poisson:rate=0", "rate must be positive"),
    ],
)
def test_an_unknown_source_is_an_error(source: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_workload(source)


# ---- generators -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GENERATORS)
def test_a_seed_fixes_everything(name: str) -> None:
    def draw(seed: int) -> list[WorkloadRequest]:
        return list(itertools.islice(GENERATORS[name](seed=seed), 200))

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


@pytest.mark.parametrize("name", GENERATORS)
def test_every_workload_is_sorted_and_an_id_names_its_whole_prefix(name: str) -> None:
    requests = list(itertools.islice(GENERATORS[name](), 500))
    assert len({request.request_id for request in requests}) == len(requests) > 10
    assert [request.arrival_s for request in requests] == sorted(request.arrival_s for request in requests)
    parents: dict[int, tuple[int | None, int]] = {}
    for request in requests:
        previous = None
        for content_id, size in (*request.segments, (request.output_id, request.num_output_tokens)):
            assert size >= 1
            assert parents.setdefault(content_id, (previous, size)) == (previous, size)
            previous = content_id


def test_poisson_and_bursts_have_the_wanted_rate_and_variation() -> None:
    for variation, requests in ((1.0, poisson(20.0, 1000.0)), (3.0, bursts(20.0, 1000.0, 3.0))):
        arrivals = [request.arrival_s for request in requests]
        gaps = [later - earlier for earlier, later in itertools.pairwise(arrivals)]
        assert len(arrivals) == pytest.approx(20_000, rel=0.08)
        assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(variation, rel=0.08)


def test_lengths_have_the_wanted_mean() -> None:
    requests = list(poisson(20.0, 1000.0, prompt_tokens=700, output_tokens=90))
    assert statistics.mean(request.num_prompt_tokens for request in requests) == pytest.approx(700, rel=0.03)
    assert statistics.mean(request.num_output_tokens for request in requests) == pytest.approx(90, rel=0.03)


def test_the_most_popular_system_prompt_is_twice_as_popular_as_the_second() -> None:
    heads = [request.segments[0][0] for request in shared_prompts(50.0, 400.0, num_prompts=4)]
    counts = sorted((heads.count(head) for head in set(heads)), reverse=True)
    assert len(counts) == 4
    assert counts[0] / counts[1] == pytest.approx(2, rel=0.1)


def test_a_chat_turn_continues_the_turn_before() -> None:
    last: dict[str, WorkloadRequest] = {}
    num_continued = 0
    for request in chat(users=50, duration_s=600.0):
        before = last.get(request.session)
        if before is not None:
            expected = [*before.segments, (before.output_id, before.num_output_tokens)]
            assert list(request.segments[:-1]) == expected
            num_continued += 1
        assert request.num_prompt_tokens + request.num_output_tokens <= 32768
        last[request.session] = request
    assert num_continued > 100


def test_sub_agents_share_the_tools_and_have_their_own_history() -> None:
    by_session: dict[str, list[WorkloadRequest]] = {}
    for request in agents(rate=0.05, duration_s=2000.0, sub_agent_share=0.3):
        by_session.setdefault(request.session, []).append(request)
    tasks = [len({request.segments[1][0] for request in requests}) for requests in by_session.values()]
    assert max(tasks) > 1
    assert len({request.segments[0] for requests in by_session.values() for request in requests}) == 1


# ---- tokens, copies, rates ------------------------------------------------------------------------------------------


def test_equal_prefixes_have_equal_tokens() -> None:
    first = WorkloadRequest("a", 0.0, [(1, 5), (2, 3)], 1, 9)
    second = WorkloadRequest("b", 0.0, [(1, 5), (3, 3)], 1, 10)
    assert first.stand_in_token_ids().tolist() == [1] * 5 + [2] * 3
    ours, theirs = first.token_ids(1000), second.token_ids(1000)
    assert ours == first.token_ids(1000)
    assert (ours[:5], len(ours)) == (theirs[:5], 8)
    assert ours[5:] != theirs[5:]
    assert all(0 <= token < 1000 for token in ours)
    assert WorkloadRequest("c", 0.0, [(-1, 5)], 1, 9).token_ids(1000) != ours[:5]


def test_copies_are_as_alike_inside_and_have_nothing_in_common() -> None:
    base = list(shared_prompts(2.0, 100.0))
    copies = list(overlay(base, 3))
    assert len(copies) == 3 * len(base)
    assert [request.arrival_s for request in copies] == sorted(request.arrival_s for request in copies)
    seen: dict[str, set[int]] = {}
    for request in copies:
        ids = {content_id for content_id, _ in request.segments} | {request.output_id}
        seen.setdefault(request.request_id.split("#")[1], set()).update(ids)
    assert len(seen) == 3
    assert sum(map(len, seen.values())) == len(set().union(*seen.values()))
    first = [request for request in copies if request.request_id.endswith("#0")]
    assert [request.segments for request in first] == [list(request.segments) for request in base]


def test_a_rate_of_two_halves_the_times() -> None:
    base = list(poisson(2.0, 100.0))
    assert [request.arrival_s * 2 for request in scale_rate(base, 2.0)] == [request.arrival_s for request in base]
