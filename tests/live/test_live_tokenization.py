"""Tokenizers and chat templates, live against transformers."""

import json
import struct
import unicodedata
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenization import chat_templates
from tokenization.conftest import (  # noqa: F401  (fixtures)
    sentencepiece,
    sentencepiece_metadata,
    smollm2,
    smollm2_metadata,
)

from octavo.tokenization.chat_template import ChatTemplate
from octavo.tokenization.tokenizer import Tokenizer

GOLDEN = Path(__file__).parent.parent / "golden" / "tokenization" / "smollm2_ids.json"
STRINGS = [entry["text"] for entry in json.loads(GOLDEN.read_text(encoding="utf-8"))]
TEXT = st.text(
    st.sampled_from(" \n\t\r019½٣aZsé'ž漢ไ😀\u0301\u00a0.,-_<|>") | st.characters(codec="utf-8"), max_size=40
)
RELAXED = settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def gguf_string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def gguf_value(value):
    """(type number, bytes) of a metadata value, as the format writes it."""
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, gguf_string(value)
    elements = [gguf_value(element) for element in value]
    return 9, struct.pack("<IQ", elements[0][0], len(elements)) + b"".join(data for _, data in elements)


def write_gguf(path, metadata):
    """A GGUF file that holds metadata only."""
    entries = []
    for key, value in {"general.architecture": "llama", **metadata}.items():
        kind, data = gguf_value(value)
        entries.append(gguf_string(key) + struct.pack("<I", kind) + data)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + b"".join(entries))


@pytest.fixture(scope="module")
def stock(tmp_path_factory, smollm2_metadata):  # noqa: F811
    """The default model's tokenizer as transformers reads it from GGUF metadata."""
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("gguf")
    write_gguf(folder / "vocabulary.gguf", smollm2_metadata)
    return AutoTokenizer.from_pretrained(folder, gguf_file="vocabulary.gguf")


@pytest.fixture(scope="module")
def reference(stock):
    """The same with the pre-tokenizer of the model's own tokenizer.json, which GGUF calls ``smollm``."""
    import copy

    from tokenizers import pre_tokenizers

    tokenizer = copy.deepcopy(stock)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return tokenizer


def test_the_default_models_ids_equal_transformers(smollm2, reference):  # noqa: F811
    assert [text for text in STRINGS if smollm2.encode(text) != reference.encode(text)] == []


def test_without_numbers_the_default_models_ids_equal_stock_transformers(smollm2, stock):  # noqa: F811
    """Stock transformers does not know ``smollm``; it only cuts numbers differently."""
    plain = [text for text in STRINGS if not any(unicodedata.category(character)[0] == "N" for character in text)]
    assert len(plain) > 200
    assert [text for text in plain if smollm2.encode(text) != stock.encode(text)] == []


@RELAXED
@given(text=TEXT)
def test_random_text_has_transformers_ids_and_text(smollm2, reference, text):  # noqa: F811
    ids = smollm2.encode(text)
    assert ids == reference.encode(text)
    for skip in (True, False):
        assert smollm2.decode(ids, skip) == reference.decode(ids, skip_special_tokens=skip)


@RELAXED
@given(ids=st.lists(st.integers(0, 49151), max_size=20), skip=st.booleans())
def test_random_ids_have_transformers_text(smollm2, reference, ids, skip):  # noqa: F811
    assert smollm2.decode(ids, skip) == reference.decode(ids, skip_special_tokens=skip)


def saved(tokenizer, folder):
    """Our reading of what transformers saves."""
    tokenizer.save_pretrained(folder)
    return Tokenizer.from_hugging_face(folder)


def test_a_saved_qwen2_tokenizer_is_read_alike_from_a_folder_and_from_gguf(tmp_path, smollm2_metadata):  # noqa: F811
    from transformers import Qwen2Tokenizer

    tokens = smollm2_metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in smollm2_metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    ends = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None}
    theirs = Qwen2Tokenizer(vocab=vocabulary, merges=merges, **ends)
    ours = saved(theirs, tmp_path)
    assert ours.eos_token_ids == (2,)
    metadata = {**smollm2_metadata, "tokenizer.ggml.pre": "qwen2"}
    metadata["tokenizer.ggml.token_type"] = [3 if ours.token_bytes(i) in (b"<|im_end|>", b"<|endoftext|>") else 1
                                             for i in range(len(tokens))]  # fmt: skip
    from_gguf = Tokenizer.from_gguf({**metadata, "tokenizer.ggml.bos_token_id": 0}, "f")
    for text in STRINGS:
        ids = theirs.encode(text)
        assert ours.encode(text) == ids
        assert from_gguf.encode(text) == ids
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_a_saved_llama_tokenizer_is_read_alike(tmp_path, sentencepiece):  # noqa: F811
    from transformers import LlamaTokenizer

    backend = sentencepiece._backend
    merges = [tuple(merge) for merge in json.loads(backend.to_str())["model"]["merges"]]
    theirs = LlamaTokenizer(vocab=backend.get_vocab(), merges=merges, add_bos_token=True)
    ours = saved(theirs, tmp_path)
    assert ours.bos_token_id == 1
    for text in [*STRINGS, "the other the", " the  other"]:
        if text.startswith("<s>"):
            assert ours.encode(text) == theirs.encode(text)[1:]  # transformers doubles BOS, we do not
            continue
        ids = theirs.encode(text)
        assert ours.encode(text) == ids, text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        if not text.startswith((" ", "▁")) and "<" not in text:  # there this class departs from SentencePiece
            assert sentencepiece.encode(text) == ids, text


@pytest.mark.parametrize("name", chat_templates.ALL)
def test_chat_templates_render_as_in_transformers(stock, name):
    source = chat_templates.ALL[name]
    messages = [
        {"role": "user", "content": "What is <b>2 + 2</b>?\n"},
        {"role": "assistant", "content": "<think>\nadd\n</think>\n\n4"},
        {"role": "user", "content": "Thanks 漢字"},
    ]
    special = {key: value for key, value in stock.special_tokens_map.items() if isinstance(value, str)}
    tools = [{"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}}]
    for given_tools in (None, tools):
        theirs = stock.apply_chat_template(
            messages, chat_template=source, tools=given_tools, tokenize=False, add_generation_prompt=True
        )
        assert ChatTemplate(source, special).render(messages, tools=given_tools) == theirs
