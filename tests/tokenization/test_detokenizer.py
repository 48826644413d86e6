"""Streaming text: the deltas join to the decoding of all ids, and stop strings never show."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.tokenization.detokenizer import IncrementalDetokenizer


def deltas(tokenizer, ids, prompt_ids=(), **options):
    detokenizer = IncrementalDetokenizer(tokenizer, prompt_ids, **options)
    found = [detokenizer.append(token_id) for token_id in ids]
    return [*found, detokenizer.finish()]


def ids_by_bytes(tokenizer):
    """Byte → the token of that byte alone, for the bytes that have one."""
    return {tokenizer.token_bytes(i)[0]: i for i in range(17, 600) if len(tokenizer.token_bytes(i)) == 1}


BYTE_LEVEL_IDS = st.lists(st.integers(17, 300) | st.integers(0, 49151), max_size=24)
SENTENCEPIECE_IDS = st.lists(st.integers(0, 2) | st.integers(3 + 0x80, 258) | st.integers(0, 400), max_size=24)


@settings(max_examples=400, deadline=None)
@given(ids=BYTE_LEVEL_IDS, skip=st.booleans())
def test_byte_level_deltas_join_to_the_decoding_of_all_ids(smollm2, ids, skip):
    found = deltas(smollm2, ids, skip_special_tokens=skip)
    assert "".join(found) == smollm2.decode(ids, skip)
    for delta in found:
        delta.encode()  # valid UTF-8: no half of anything


@settings(max_examples=400, deadline=None)
@given(ids=SENTENCEPIECE_IDS, skip=st.booleans())
def test_sentencepiece_deltas_join_to_the_decoding_of_all_ids(sentencepiece, ids, skip):
    assert "".join(deltas(sentencepiece, ids, skip_special_tokens=skip)) == sentencepiece.decode(ids, skip)


@settings(max_examples=300, deadline=None)
@given(prompt=st.text(max_size=12), text=st.text(max_size=12), kind=st.sampled_from(["smollm2", "sentencepiece"]))
def test_after_a_prompt_the_deltas_are_what_the_ids_add_to_it(request, prompt, text, kind):
    tokenizer = request.getfixturevalue(kind)
    prompt_ids = tokenizer.encode(prompt)
    ids = tokenizer.encode(text, add_special_tokens=False)
    found = "".join(deltas(tokenizer, ids, prompt_ids))
    assert tokenizer.decode(prompt_ids) + found == tokenizer.decode(prompt_ids + ids)


def test_a_sentencepiece_tokens_leading_space_stays_after_a_prompt(sentencepiece):
    ids = sentencepiece.encode("the", add_special_tokens=False)
    assert "".join(deltas(sentencepiece, ids)) == "the"
    assert "".join(deltas(sentencepiece, ids, prompt_ids=[1])) == "the"
    assert "".join(deltas(sentencepiece, ids, prompt_ids=sentencepiece.encode("on"))) == " the"


def test_a_character_comes_out_when_its_last_byte_is_there(smollm2):
    token_of = ids_by_bytes(smollm2)
    ids = [token_of[byte] for byte in "é漢".encode()]
    assert deltas(smollm2, ids) == ["", "é", "", "", "漢", ""]


def test_a_character_that_the_prompt_began_is_completed(smollm2):
    token_of = ids_by_bytes(smollm2)
    ids = [token_of[byte] for byte in "a漢b".encode()]
    assert deltas(smollm2, ids[2:], prompt_ids=ids[:2]) == ["", "漢", "b", ""]


def test_an_unfinished_character_ends_as_a_replacement_character(smollm2):
    token_of = ids_by_bytes(smollm2)
    assert deltas(smollm2, [token_of[0xE6], token_of[0xBC]]) == ["", "", "\ufffd"]
    assert deltas(smollm2, [token_of[0xE6], token_of[ord("a")]]) == ["", "\ufffda", ""]


def test_a_special_token_between_the_bytes_of_a_character_does_not_part_them(smollm2):
    token_of = ids_by_bytes(smollm2)
    assert deltas(smollm2, [token_of[0xC3], 2, token_of[0xA9]]) == ["", "", "é", ""]
    shown = deltas(smollm2, [token_of[0xC3], 2, token_of[0xA9]], skip_special_tokens=False)
    assert shown == ["", "\ufffd<|im_end|>", "\ufffd", ""]


def test_a_stop_string_across_tokens_is_held_back_and_never_shown(smollm2):
    detokenizer = IncrementalDetokenizer(smollm2, stop=["\n\nUser:"])
    ids = smollm2.encode("Fine.\n\nUser: what")
    shown = []
    for token_id in ids:
        shown.append(detokenizer.append(token_id))
        if detokenizer.stop_string:
            break
    assert detokenizer.stop_string == "\n\nUser:"
    assert "".join(shown) == detokenizer.text == "Fine."
    assert detokenizer.num_tokens == len(smollm2.encode("Fine.\n\nUser:"))
    assert detokenizer.finish() == ""


def test_what_could_have_been_a_stop_string_comes_out_when_it_is_none(smollm2):
    token_of = ids_by_bytes(smollm2)
    ids = [token_of[byte] for byte in b"xSTOxx"]
    assert deltas(smollm2, ids, stop=["STOP"]) == ["x", "", "", "", "STOx", "x", ""]


def test_what_is_held_at_the_end_comes_out(smollm2):
    token_of = ids_by_bytes(smollm2)
    ids = [token_of[byte] for byte in b"xSTO"]
    assert deltas(smollm2, ids, stop=["STOP"])[-1] == "STO"


def test_a_stop_string_of_split_characters(smollm2):
    token_of = ids_by_bytes(smollm2)
    ids = [token_of[byte] for byte in "a漢é".encode()]
    detokenizer = IncrementalDetokenizer(smollm2, stop=["漢é"])
    assert detokenizer.append_many(ids) == "a"
    assert detokenizer.stop_string == "漢é"


def test_the_stop_string_shows_when_it_is_asked_for(smollm2):
    ids = smollm2.encode("Fine. END and more")
    detokenizer = IncrementalDetokenizer(smollm2, stop=["END"], include_stop_str_in_output=True)
    assert detokenizer.append_many(ids) == "Fine. END"
    assert detokenizer.num_tokens < len(ids)


@pytest.mark.parametrize(("min_tokens", "expected"), [(0, "a"), (2, "a"), (3, "a,b"), (5, "a,b,c")])
def test_stop_strings_count_only_after_min_tokens(smollm2, min_tokens, expected):
    token_of = ids_by_bytes(smollm2)
    ids = [token_of[byte] for byte in b"a,b,c"]
    detokenizer = IncrementalDetokenizer(smollm2, stop=[",b", ",c"], min_tokens=min_tokens)
    assert detokenizer.append_many(ids) + detokenizer.finish() == expected


def test_append_many_equals_append(smollm2):
    ids = smollm2.encode("one two three")
    detokenizer = IncrementalDetokenizer(smollm2)
    assert detokenizer.append_many(ids) == "one two three"
    assert detokenizer.num_tokens == len(ids)
