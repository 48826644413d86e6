"""Token ids: against golden ids of transformers, and against slow twins."""

import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenization.conftest import SENTENCEPIECE_TEXT
from tokenization.slow_bpe import SlowByteLevelBpe, slow_sentencepiece

from octavo.errors import RequestError
from octavo.tokenization.tokenizer import Tokenizer

GOLDEN = Path(__file__).parent.parent / "golden" / "tokenization" / "smollm2_ids.json"

# Characters that every Unicode version in use knows; the twin asks Python's tables, the library its own.
TEXT = st.text(
    st.one_of(
        st.sampled_from(" \n\t\r'sStTlLdD019½²٣aZéž漢ไ😀\u0301\u00a0\u3000.,-_<|>"),
        st.characters(codec="utf-8", exclude_categories=("Cn", "Cs", "Co")),
    ).filter(lambda character: unicodedata.category(character) != "Cn" and ord(character) < 0x1E000),
    max_size=40,
)


@pytest.fixture(scope="module")
def twin(smollm2_metadata):
    tokens = smollm2_metadata["tokenizer.ggml.tokens"]
    types = smollm2_metadata["tokenizer.ggml.token_type"]
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == 3]
    return SlowByteLevelBpe(tokens, smollm2_metadata["tokenizer.ggml.merges"], special)


def test_ids_equal_transformers_on_all_golden_strings(smollm2):
    entries = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert len(entries) >= 500
    differing = [entry["text"] for entry in entries if smollm2.encode(entry["text"]) != entry["ids"]]
    assert differing == []


def test_the_slow_twin_agrees_with_the_golden_ids(twin):
    entries = json.loads(GOLDEN.read_text(encoding="utf-8"))
    differing = [entry["text"] for entry in entries if twin.encode(entry["text"]) != entry["ids"]]
    assert differing == []


@settings(max_examples=300, deadline=None)
@given(text=TEXT)
def test_byte_level_ids_equal_the_slow_twin(smollm2, twin, text):
    assert smollm2.encode(text) == twin.encode(text)


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.sampled_from("  aabbnothe=-éAx\n") | st.characters(codec="utf-8"), max_size=40))
def test_sentencepiece_ids_equal_the_slow_twin(sentencepiece, sentencepiece_metadata, text):
    tokens = sentencepiece_metadata["tokenizer.ggml.tokens"]
    assume(not any(special in text for special in tokens[:3]))
    pieces = range(259, len(tokens))
    scores = {tokens[i]: sentencepiece_metadata["tokenizer.ggml.scores"][i] for i in pieces}
    ids = {token: token_id for token_id, token in enumerate(tokens)}
    assert sentencepiece.encode(text, add_special_tokens=False) == slow_sentencepiece(text, scores, ids)


def test_sentencepiece_spells_its_own_text_in_whole_pieces(sentencepiece):
    ids = sentencepiece.encode(SENTENCEPIECE_TEXT)
    assert len(ids) < len(SENTENCEPIECE_TEXT) / 3
    assert sentencepiece.decode(ids) == SENTENCEPIECE_TEXT


def test_special_tokens_in_text_become_special(smollm2):
    assert smollm2.encode("<|im_start|>user\nHi<|im_end|>") == [1, 4093, 198, 26843, 2]


def test_the_default_model_wants_no_bos_and_ends_with_im_end(smollm2):
    assert smollm2.encode("Hi") == [26843]
    assert smollm2.bos_token_id == 1
    assert smollm2.eos_token_ids == (2,)
    assert smollm2.vocab_size == 49152
    assert smollm2.special_ids == frozenset(range(17))
    assert smollm2.special_tokens["eos_token"] == "<|im_end|>"


@pytest.mark.parametrize("text", ["the other", "<s>the other", ""])
def test_bos_comes_exactly_once(sentencepiece, text):
    ids = sentencepiece.encode(text)
    assert ids[0] == 1
    assert ids.count(1) == 1


def test_bos_is_left_out_on_request(sentencepiece):
    assert sentencepiece.encode("the", add_special_tokens=False) == sentencepiece.encode("the")[1:]


def test_eos_comes_exactly_once_where_the_model_wants_one(sentencepiece_metadata):
    tokenizer = Tokenizer.from_gguf({**sentencepiece_metadata, "tokenizer.ggml.add_eos_token": True}, "f")
    assert tokenizer.encode("the")[-1] == 2
    assert tokenizer.encode("the</s>").count(2) == 1


def test_no_space_is_put_before_text_where_the_file_says_so(sentencepiece_metadata):
    metadata = {**sentencepiece_metadata, "tokenizer.ggml.add_space_prefix": False}
    tokenizer = Tokenizer.from_gguf(metadata, "f")
    ids = tokenizer.encode("the", add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, ids)) == b"the"
    assert tokenizer.decode(tokenizer.encode(" the")) == " the"


def test_a_lone_surrogate_is_refused_with_its_place(smollm2):
    with pytest.raises(RequestError, match=r"surrogate pair.*at 2"):
        smollm2.encode("ab\ud800c")


def test_a_prompt_that_is_no_string_is_refused(smollm2):
    with pytest.raises(RequestError, match="must be a string, not bytes"):
        smollm2.encode(b"ab")


def test_token_bytes_are_exact(smollm2, sentencepiece):
    text = "naïve 漢字 😀\n"
    for tokenizer in (smollm2, sentencepiece):
        ids = tokenizer.encode(text, add_special_tokens=False)
        joined = b"".join(tokenizer.token_bytes(token_id) for token_id in ids)
        assert joined.decode().removeprefix(" " if tokenizer.strips_leading_space else "") == text
    assert smollm2.token_bytes(2) == b"<|im_end|>"
    assert sentencepiece.token_bytes(3 + 0xE4) == b"\xe4"


def test_an_id_that_is_no_token_has_no_bytes(smollm2):
    assert smollm2.token_bytes(49152) == b""
    assert smollm2.decode([26843, 10**9, -1]) == "Hi"


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(st.integers(0, 49151), max_size=20), skip=st.booleans())
def test_byte_level_decoding_equals_the_librarys(smollm2, ids, skip):
    from tokenizers import decoders

    backend = smollm2._backend
    backend.decoder = decoders.ByteLevel()
    assert smollm2.decode(ids, skip) == backend.decode(ids, skip_special_tokens=skip)


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=30), skip=st.booleans())
def test_sentencepiece_decoding_equals_the_librarys(sentencepiece, text, skip):
    from tokenizers import decoders

    backend = sentencepiece._backend
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    ids = sentencepiece.encode(text)
    assert sentencepiece.decode(ids, skip) == backend.decode(ids, skip_special_tokens=skip)
