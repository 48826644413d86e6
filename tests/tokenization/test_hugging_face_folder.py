"""Tokenizers from Hugging Face folders."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenization.slow_bpe import byte_alphabet

from octavo.errors import ChatTemplateError, ModelFileError, ModelNotFoundError, OctavoError, UnsupportedModelError
from octavo.tokenization.tokenizer import Tokenizer


def byte_level_backend(bos=None):
    """All bytes, one merge (256), then <bos> (257), <eos> (258) and <tool>, which is no special token."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
    from tokenizers import Tokenizer as Backend

    vocabulary = {character: byte for byte, character in enumerate(byte_alphabet())} | {"ab": 256}
    backend = Backend(models.BPE(vocab=vocabulary, merges=[("a", "b")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<bos>", "<eos>"])
    backend.add_tokens([AddedToken("<tool>", normalized=False)])
    if bos is not None:
        backend.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, 257)])
    return backend


def sentencepiece_backend(metadata):
    from tokenizers import decoders, processors

    backend = Tokenizer.from_gguf(metadata, "f")._backend
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return backend


def folder_with(path, backend, **files):
    backend.save(str(path / "tokenizer.json"))
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (path / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return path


NAMED = {"bos_token": "<bos>", "eos_token": {"content": "<eos>", "special": True}}


def test_a_byte_level_tokenizer(tmp_path):
    tokenizer = Tokenizer.from_hugging_face(
        folder_with(tmp_path, byte_level_backend("<bos>"), tokenizer_config__json=NAMED)
    )
    assert tokenizer.encode("abé") == [257, 256, 0xC3, 0xA9]
    assert tokenizer.encode("<bos>ab") == [257, 256]
    assert tokenizer.encode("ab", add_special_tokens=False) == [256]
    assert tokenizer.decode([257, 256, 0xC3, 0xA9, 259, 258]) == "abé<tool>"
    assert tokenizer.token_bytes(0xC3) == b"\xc3"
    assert (tokenizer.vocab_size, tokenizer.bos_token_id, tokenizer.eos_token_ids) == (260, 257, (258,))
    assert tokenizer.special_ids == {257, 258}
    assert tokenizer.special_tokens == {"bos_token": "<bos>", "eos_token": "<eos>"}
    assert tokenizer.chat_template is None


def test_a_sentencepiece_tokenizer(tmp_path, sentencepiece_metadata, sentencepiece):
    folder = folder_with(
        tmp_path, sentencepiece_backend(sentencepiece_metadata), tokenizer_config__json={"bos_token": "<s>"}
    )
    tokenizer = Tokenizer.from_hugging_face(folder)
    for text in ("the other", " spaces  é漢\n", "<s>the</s>x"):
        ids = sentencepiece.encode(text)
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == sentencepiece.decode(ids)
    assert tokenizer.strips_leading_space


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, [256]),
        ({"add_bos_token": True}, [257, 256]),
        ({"add_bos_token": True, "add_eos_token": True}, [257, 256, 258]),
    ],
)
def test_the_configuration_can_ask_for_bos_and_eos(tmp_path, flags, expected):
    folder = folder_with(tmp_path, byte_level_backend(), tokenizer_config__json={**NAMED, **flags})
    assert Tokenizer.from_hugging_face(folder).encode("ab") == expected


def test_the_configuration_can_forbid_bos(tmp_path):
    config = {**NAMED, "add_bos_token": False}
    folder = folder_with(tmp_path, byte_level_backend("<bos>"), tokenizer_config__json=config)
    assert Tokenizer.from_hugging_face(folder).encode("ab") == [256]


def test_whatever_ends_generation_ends_a_sequence(tmp_path):
    folder = folder_with(
        tmp_path,
        byte_level_backend(),
        tokenizer_config__json=NAMED,
        generation_config__json={"eos_token_id": [300, 258]},
    )
    assert Tokenizer.from_hugging_face(folder).eos_token_ids == (258, 300)


def test_a_named_token_is_special_though_the_file_forgot_it(tmp_path):
    folder = folder_with(tmp_path, byte_level_backend(), special_tokens_map__json={"eos_token": "<tool>"})
    tokenizer = Tokenizer.from_hugging_face(folder)
    assert 259 in tokenizer.special_ids
    assert tokenizer.eos_token_ids == (259,)


def test_tokens_that_only_the_configuration_has_get_their_ids(tmp_path):
    added = {"260": {"content": "<new>", "special": True}, "259": {"content": "<tool>", "special": False}}
    folder = folder_with(tmp_path, byte_level_backend(), tokenizer_config__json={"added_tokens_decoder": added})
    tokenizer = Tokenizer.from_hugging_face(folder)
    assert tokenizer.encode("<new>ab") == [260, 256]
    assert tokenizer.special_ids == {257, 258, 260}
    added["777"] = {"content": "<far>", "special": True}
    folder_with(tmp_path, byte_level_backend(), tokenizer_config__json={"added_tokens_decoder": added})
    with pytest.raises(
        ModelFileError, match=r"added_tokens_decoder\.777: is '<far>', which tokenizer\.json places at 261"
    ):
        Tokenizer.from_hugging_face(folder)


def test_a_tokenizer_that_cuts_or_fills_does_neither(tmp_path):
    backend = byte_level_backend()
    backend.enable_truncation(2)
    backend.enable_padding(length=9)
    assert Tokenizer.from_hugging_face(folder_with(tmp_path, backend)).encode("ab ab ab") == [256, 32, 256, 32, 256]


HI = [{"role": "user", "content": "Hi"}]


def test_chat_templates_come_from_the_configuration_or_a_file_of_their_own(tmp_path):
    config = {**NAMED, "chat_template": "{{ bos_token }}config"}
    folder = folder_with(tmp_path, byte_level_backend(), tokenizer_config__json=config)
    assert Tokenizer.from_hugging_face(folder).render_chat(HI) == "<bos>config"
    (folder / "chat_template.jinja").write_text("{{ eos_token }}file")
    assert Tokenizer.from_hugging_face(folder).render_chat(HI) == "<eos>file"


def test_a_list_of_named_chat_templates(tmp_path):
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    folder = folder_with(tmp_path, byte_level_backend(), tokenizer_config__json={"chat_template": named})
    tokenizer = Tokenizer.from_hugging_face(folder)
    assert tokenizer.render_chat(HI) == "plain"
    assert tokenizer.render_chat(HI, tools=[{"name": "f"}]) == "tools"


def test_a_broken_chat_template_is_an_error_only_when_it_is_used(tmp_path):
    folder = folder_with(tmp_path, byte_level_backend(), tokenizer_config__json={"chat_template": "{{"})
    tokenizer = Tokenizer.from_hugging_face(folder)
    with pytest.raises(ChatTemplateError, match="the chat template is wrong: line 1"):
        tokenizer.render_chat(HI)


def test_a_folder_without_tokenizer_json_says_what_to_do(tmp_path):
    with pytest.raises(ModelNotFoundError, match=r"has no tokenizer\.json$"):
        Tokenizer.from_hugging_face(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(ModelNotFoundError, match=r"has no tokenizer\.json; transformers makes one"):
        Tokenizer.from_hugging_face(tmp_path)


def test_a_decoder_that_octavo_does_not_have_is_refused_by_name(tmp_path):
    from tokenizers import decoders

    backend = byte_level_backend()
    backend.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedModelError, match="decoder: WordPiece is not supported"):
        Tokenizer.from_hugging_face(folder_with(tmp_path, backend))


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("tokenizer.json", "{", r"tokenizer\.json: content: makes no tokenizer"),
        ("tokenizer.json", '{"model": {}}', r"tokenizer\.json: content: makes no tokenizer"),
        ("tokenizer_config.json", "{", r"tokenizer_config\.json: content: is no JSON"),
        ("tokenizer_config.json", "[]", r"tokenizer_config\.json: content: must be an object"),
        ("tokenizer_config.json", '{"bos_token": 5}', r"tokenizer_config\.json: bos_token: must be a token"),
        ("tokenizer_config.json", '{"chat_template": 5}', r"chat_template: must be a string or an array"),
        ("tokenizer_config.json", '{"chat_template": [5]}', r"chat_template: a named template needs"),
        ("tokenizer_config.json", '{"added_tokens_decoder": 5}', r"added_tokens_decoder: must be an object"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"1": 5}}', r"added_tokens_decoder: must be a token"),
        (
            "generation_config.json",
            '{"eos_token_id": "x"}',
            r"generation_config\.json: eos_token_id: must be a token id",
        ),
        ("special_tokens_map.json", "\ud800", r"special_tokens_map\.json: content: is no JSON"),
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(tmp_path, name, content, problem):
    folder = folder_with(tmp_path, byte_level_backend())
    (folder / name).write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(ModelFileError, match=problem):
        Tokenizer.from_hugging_face(folder)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_tokenizer_json_with_a_flipped_byte_loads_or_is_an_error_of_ours(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("flipped")
    folder_with(folder, byte_level_backend("<bos>"), tokenizer_config__json=NAMED)
    content = bytearray((folder / "tokenizer.json").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (folder / "tokenizer.json").write_bytes(content)
    with contextlib.suppress(OctavoError):
        tokenizer = Tokenizer.from_hugging_face(folder)
        assert isinstance(tokenizer.decode(tokenizer.encode("ab é<bos>")), str)
