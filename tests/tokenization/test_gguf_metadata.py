"""GGUF tokenizer metadata: what it means, and that damaged metadata is an error that names the key."""

import contextlib
import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenization.slow_bpe import byte_alphabet

from octavo.errors import ModelFileError, OctavoError, UnsupportedModelError
from octavo.tokenization.byte_alphabet import CHARACTER_TO_BYTE
from octavo.tokenization.tokenizer import Tokenizer, load_tokenizer

ALPHABET = byte_alphabet()


def byte_level(**changes):
    """A vocabulary of all bytes, two merges and some tokens of each kind."""
    extra = {"ab": 1, "abc": 1, "<bos>": 3, "<eos>": 3, "  tab": 4, "<é>": 4, "[PAD0]": 5, "12": 1}
    metadata = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": [*ALPHABET, *extra],
        "token_type": [1] * 256 + list(extra.values()),
        "merges": ["a b", "ab c", "1 2"],
        "bos_token_id": 258,
        "eos_token_id": 259,
    }
    metadata.update(changes)
    return {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not None}


def texts(tokenizer, text):
    return [tokenizer.token_bytes(token_id).decode() for token_id in tokenizer.encode(text)]


def test_the_byte_alphabet_is_gpt2s():
    assert {character: byte for byte, character in enumerate(ALPHABET)} == CHARACTER_TO_BYTE
    assert ALPHABET[0x20] == "Ġ"
    assert ALPHABET[0x0A] == "Ċ"


def test_merges_and_user_defined_tokens():
    tokenizer = Tokenizer.from_gguf(byte_level(), "f")
    assert texts(tokenizer, "abcab  tab<é>x<bos>") == ["abc", "ab", "  tab", "<é>", "x", "<bos>"]
    assert tokenizer.decode(tokenizer.encode("ab<é>é<eos>")) == "ab<é>é"


def test_an_unused_token_is_never_made_and_has_no_text():
    tokenizer = Tokenizer.from_gguf(byte_level(), "f")
    assert 262 not in tokenizer.encode("[PAD0]")
    assert tokenizer.token_bytes(262) == b""


def test_bos_and_eos_are_added_as_the_flags_say():
    assert Tokenizer.from_gguf(byte_level(), "f").encode("ab") == [256]
    flags = {"add_bos_token": True, "add_eos_token": True}
    assert Tokenizer.from_gguf(byte_level(**flags), "f").encode("ab") == [258, 256, 259]
    assert Tokenizer.from_gguf(byte_level(**flags), "f").encode("<bos>ab") == [258, 256, 259]
    assert Tokenizer.from_gguf(byte_level(pre="llama-bpe"), "f").encode("ab") == [258, 256]
    assert Tokenizer.from_gguf(byte_level(pre="llama-bpe", add_bos_token=False), "f").encode("ab") == [256]


def test_every_token_that_ends_a_turn_is_known():
    tokens = [*byte_level()["tokenizer.ggml.tokens"], "<|eot_id|>", "<|im_end|>"]
    types = [*byte_level()["tokenizer.ggml.token_type"], 3, 3]
    changes = {"tokens": tokens, "token_type": types}
    assert Tokenizer.from_gguf(byte_level(**changes), "f").eos_token_ids == (259, 264, 265)
    assert Tokenizer.from_gguf(byte_level(**changes, eot_token_id=264), "f").eos_token_ids == (259, 264)


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("smollm", "a  12", ["a", " ", " ", "1", "2"]),
        ("gpt-2", "12 12", ["12", " ", "12"]),
        ("llama-bpe", "12121", ["<bos>", "12", "1", "2", "1"]),
        ("llama-bpe", "abc", ["<bos>", "abc"]),
        ("qwen2", "12", ["1", "2"]),
        ("default", "12", ["12"]),
        ("tekken", "12", ["<bos>", "1", "2"]),
    ],
)
def test_the_named_pre_tokenizer_decides_what_can_merge(pre, text, expected):
    tokenizer = Tokenizer.from_gguf(byte_level(pre=pre), "f")
    assert texts(tokenizer, text) == expected


def test_qwen2_normalizes_its_text():
    tokenizer = Tokenizer.from_gguf(byte_level(pre="qwen2"), "f")
    assert tokenizer.decode(tokenizer.encode("e\u0301")) == "\u00e9"


def pieces(pre, text):
    """The pre-tokenizer's cuts, as text."""
    from octavo.tokenization.pretokenizers import PRE_TOKENIZERS

    cuts = PRE_TOKENIZERS[pre].build().pre_tokenize_str(text)
    return [bytes(CHARACTER_TO_BYTE[character] for character in cut).decode() for cut, _ in cuts]


@pytest.mark.parametrize(
    ("pre", "text", "expected"),
    [
        ("gpt-2", "I'll  do 123 it's\n\n x!!", ["I", "'ll", " ", " do", " 123", " it", "'s", "\n\n", " x", "!!"]),
        ("smollm", "I'LL  do 123", ["I", "'", "LL", " ", " do", " ", "1", "2", "3"]),
        ("llama-bpe", "I'LL  do 12345\n\n x!!\n", ["I", "'LL", " ", " do", " ", "123", "45", "\n\n", " x", "!!\n"]),
        ("qwen2", "#a_b 123\r\n", ["#a", "_b", " ", "1", "2", "3", "\r\n"]),
        ("tekken", "HelloWorld ABCdef 12", ["Hello", "World", " ABCdef", " ", "1", "2"]),
        ("deepseek-v3", "x=a1234 漢字かな abc", ["x", "=a", "123", "4", " ", "漢字かな", " abc"]),
        ("deepseek-coder", "a, 12\n漢", ["a", ",", " ", "1", "2", "\n", "漢"]),
        ("default", "a+b=12345 c", ["a", "+", "b", "=", "123", "45", " c"]),
    ],
)
def test_pre_tokenizers_cut_as_their_models_expect(pre, text, expected):
    assert pieces(pre, text) == expected


def test_a_file_without_a_pre_tokenizer_is_read_with_a_warning(caplog):
    with caplog.at_level(logging.WARNING, "octavo"):
        Tokenizer.from_gguf(byte_level(pre=None), "old.gguf")
    assert "old.gguf does not say how it cuts text" in caplog.text


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model": None}, r"f: tokenizer\.ggml\.model: is missing"),
        ({"tokens": None}, r"f: tokenizer\.ggml\.tokens: is missing"),
        ({"tokens": []}, r"tokens: is empty"),
        ({"tokens": "abc"}, r"tokens: must be an array"),
        ({"tokens": [1, 2]}, r"tokens: must hold nothing but strings"),
        ({"tokens": ["a", "a"], "token_type": None}, r"tokens: two tokens have the same spelling"),
        ({"token_type": [1]}, r"token_type: has 1 entries for 264 tokens"),
        ({"token_type": [9] * 264}, r"token_type: holds 9, which is no type"),
        ({"merges": None}, r"merges: is missing"),
        ({"merges": ["a b", "abc"]}, r"merges: entry 1 is no pair of tokens: 'abc'"),
        ({"merges": ["a nothing"]}, r"merges: entry 0 makes 'anothing', which is no token"),
        ({"merges": ["b c"]}, r"merges: entry 0 makes 'bc', which is no token"),
        ({"merges": [" ab"]}, r"merges: makes no tokenizer"),
        ({"bos_token_id": 264}, r"bos_token_id: is 264, but the ids end at 263"),
        ({"eos_token_id": -1}, r"eos_token_id: is -1"),
        ({"eos_token_id": "x"}, r"eos_token_id: must be a token id"),
        ({"add_bos_token": 3}, r"add_bos_token: must be true or false"),
        ({"bos_token_id": None, "add_bos_token": True}, r"bos_token_id: is missing, though .*add_bos_token needs it"),
        ({"pre": 5}, r"pre: must be a string"),
    ],
)
def test_damaged_metadata_is_an_error_that_names_the_key(changes, problem):
    with pytest.raises(ModelFileError, match=problem):
        Tokenizer.from_gguf(byte_level(**changes), "f")


def test_a_chat_template_that_is_no_string_is_an_error():
    with pytest.raises(ModelFileError, match=r"f: tokenizer\.chat_template: must be a string"):
        Tokenizer.from_gguf({**byte_level(), "tokenizer.chat_template": 5}, "f")


def test_what_octavo_does_not_have_is_refused_by_name():
    with pytest.raises(
        UnsupportedModelError, match=r"tokenizer\.ggml\.pre: the pre-tokenizer 'whale' is not supported"
    ):
        Tokenizer.from_gguf(byte_level(pre="whale"), "f")
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.ggml\.model: 'bert' is not supported"):
        Tokenizer.from_gguf(byte_level(model="bert"), "f")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"scores": None}, r"scores: is missing"),
        ({"token_type": [5] * 300}, r"token_type: has 300 entries"),
        ({"scores": [0.0]}, r"scores: has 1 entries"),
        ({"scores": "nan"}, r"scores: must be an array"),
        ({"tokens": ["<s>", "</s>", "a"], "token_type": [3, 3, 1]}, r"neither a token for unknown characters nor one"),
    ],
)
def test_damaged_sentencepiece_metadata_is_an_error_that_names_the_key(sentencepiece_metadata, changes, problem):
    metadata = dict(sentencepiece_metadata)
    for key, value in changes.items():
        metadata["tokenizer.ggml." + key] = value
    if "tokens" in changes:
        del metadata["tokenizer.ggml.unknown_token_id"]
    with pytest.raises(ModelFileError, match=problem):
        Tokenizer.from_gguf({key: value for key, value in metadata.items() if value is not None}, "f")


def test_scores_that_are_not_finite_are_refused(sentencepiece_metadata):
    scores = [float("nan"), *sentencepiece_metadata["tokenizer.ggml.scores"][1:]]
    with pytest.raises(ModelFileError, match="scores: holds a number that is not finite"):
        Tokenizer.from_gguf({**sentencepiece_metadata, "tokenizer.ggml.scores": scores}, "f")


def test_arrays_are_read_as_well_as_lists(sentencepiece_metadata, sentencepiece):
    metadata = dict(sentencepiece_metadata)
    metadata["tokenizer.ggml.scores"] = np.array(metadata["tokenizer.ggml.scores"], np.float32)
    metadata["tokenizer.ggml.token_type"] = np.array(metadata["tokenizer.ggml.token_type"], np.int32)
    assert Tokenizer.from_gguf(metadata, "f").encode("the other") == sentencepiece.encode("the other")


def test_a_checkpoints_format_decides_where_its_tokenizer_is(tmp_path):
    class Checkpoint:
        path = tmp_path
        format = "gguf"
        metadata = byte_level()

    assert load_tokenizer(Checkpoint()).encode("ab") == [256]
    Checkpoint.format = "safetensors"
    with pytest.raises(OctavoError, match=r"has no tokenizer\.json"):
        load_tokenizer(Checkpoint())


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 400), st.floats(), st.text(max_size=5), st.binary(max_size=3),
    st.lists(st.one_of(st.text(max_size=3), st.integers(-2, 7), st.floats(), st.none()), max_size=6),
    st.sampled_from(["gpt2", "llama", "smollm", "default", [1] * 264, [3] * 264, [6] * 264, ["a b"] * 3, [0.5] * 264]),
)  # fmt: skip
KEYS = st.sampled_from(
    ["model", "pre", "tokens", "token_type", "merges", "scores", "bos_token_id", "eos_token_id", "unknown_token_id",
     "padding_token_id", "eot_token_id", "add_bos_token", "add_eos_token", "add_space_prefix",
     "remove_extra_whitespaces"]
)  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(changes=st.dictionaries(KEYS, VALUES, max_size=4))
def test_random_metadata_makes_a_tokenizer_or_an_error_of_ours(changes):
    with contextlib.suppress(OctavoError):
        tokenizer = Tokenizer.from_gguf(byte_level(**changes), "f")
        assert isinstance(tokenizer.decode(tokenizer.encode("abc <bos> é")), str)


@settings(max_examples=300, deadline=None)
@given(tokens=st.lists(st.text(max_size=4), max_size=12, unique=True), data=st.data())
def test_random_vocabularies_make_a_tokenizer_or_an_error_of_ours(tokens, data):
    count = len(tokens)
    metadata = {
        "tokenizer.ggml.model": data.draw(st.sampled_from(["gpt2", "llama"])),
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": data.draw(st.lists(st.integers(1, 6), min_size=count, max_size=count)),
        "tokenizer.ggml.scores": data.draw(st.lists(st.floats(-9, 9), min_size=count, max_size=count)),
        "tokenizer.ggml.merges": [" ".join(data.draw(st.permutations(tokens))[:2]) for _ in range(min(count, 3))],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 0,
    }
    with contextlib.suppress(OctavoError):
        tokenizer = Tokenizer.from_gguf(metadata, "f")
        assert isinstance(tokenizer.decode(tokenizer.encode("".join(tokens))), str)
