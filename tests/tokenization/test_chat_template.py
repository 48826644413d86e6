"""Chat templates do what plain Jinja, set up as the field sets it up, does with them."""

import json
import subprocess
import sys
from datetime import datetime

import pytest
from tokenization import chat_templates

from octavo.errors import ChatTemplateError, RequestError
from octavo.tokenization.chat_template import ChatTemplate
from octavo.tokenization.tokenizer import Tokenizer

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
HI = [{"role": "user", "content": "Hi"}]
TALK = [
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "What is 2+2?"},
    {"role": "assistant", "content": "<think>\nadd\n</think>\n\n4"},
    {"role": "user", "content": "Ünïcode 漢字 <b>&\"' and\nlines"},
]
CALLS = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Brno", "days": 3}}}],
    },
    {"role": "tool", "content": "sunny"},
]
TOOLS = [
    {
        "name": name,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "box": {"type": "object", "properties": {"n": {}}}},
        },
    }
    for name in ("weather", "ügly <name>", "third")
]


def plain_jinja(source, messages, **variables):
    """The slow twin: the field's usual environment, without any limit."""
    from jinja2 import nodes
    from jinja2.exceptions import TemplateError
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        tags = frozenset({"generation"})

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

        def _body(self, caller):
            return caller()

    def refuse(message):
        raise TemplateError(message)

    def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    return environment.from_string(source).render(messages=messages, **SPECIAL, **variables)


@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("messages", [HI, TALK, CALLS], ids=["hi", "talk", "calls"])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize("name", chat_templates.ALL)
def test_a_template_renders_as_in_plain_jinja(name, messages, tools, add_generation_prompt):
    source = chat_templates.ALL[name]
    variables = {"tools": tools, "add_generation_prompt": add_generation_prompt}
    try:
        expected = plain_jinja(source, messages, **variables)
    except Exception:
        with pytest.raises(ChatTemplateError):
            ChatTemplate(source, SPECIAL).render(messages, **variables)
    else:
        assert ChatTemplate(source, SPECIAL).render(messages, **variables) == expected


def test_the_default_models_template(smollm2):
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    rendered = smollm2.render_chat(HI)
    assert rendered == system + "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    ids = smollm2.encode(rendered)
    assert ids[0] == 1
    assert ids.count(1) == 3
    assert smollm2.decode(ids, skip_special_tokens=False) == rendered


def test_headers_are_rendered_literally():
    rendered = ChatTemplate(chat_templates.HEADERS, SPECIAL).render(TALK[:2], date_string="1 May 2025")
    assert rendered == (
        "<s><|start_header_id|>system<|end_header_id|>\n\nToday: 1 May 2025\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nWhat is 2+2?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_extra_variables_reach_the_template():
    template = ChatTemplate(chat_templates.TOOLS_AND_THOUGHTS)
    assert template.render(HI, enable_thinking=False).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_a_bos_that_the_template_writes_is_not_doubled(sentencepiece):
    rendered = ChatTemplate(chat_templates.INSTRUCTIONS, sentencepiece.special_tokens).render(HI)
    assert rendered == "<s>[INST] Hi [/INST]"
    assert sentencepiece.encode(rendered).count(1) == 1


def test_the_templates_own_refusal_is_told():
    template = ChatTemplate(chat_templates.INSTRUCTIONS, SPECIAL, name="model.gguf")
    with pytest.raises(ChatTemplateError, match=r"model\.gguf: .*refuses the messages: Roles must alternate"):
        template.render([*HI, *HI])


def test_text_parts_are_joined_with_line_feeds():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert "user\none\ntwo<|im_end|>" in ChatTemplate(chat_templates.CHATML).render(
        [{"role": "user", "content": parts}]
    )


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ("Hi", "messages must be a list"),
        ([], "messages is empty"),
        (["Hi"], r"messages\[0\] must be an object"),
        ([{"content": "Hi"}], r"messages\[0\]\.role must be a string"),
        ([*HI, {"role": "user"}], r"messages\[1\]\.content must be a string"),
        ([{"role": "user", "content": 5}], r"messages\[0\]\.content must be a string"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"messages\[0\]\.content\[0\] must be .*text only"),
    ],
)
def test_malformed_messages_are_refused_by_name(messages, problem):
    with pytest.raises(RequestError, match=problem):
        ChatTemplate(chat_templates.CHATML).render(messages)


def test_messages_of_objects_that_are_no_plain_data_are_refused():
    with pytest.raises(ChatTemplateError, match="datetime is no plain data"):
        ChatTemplate(chat_templates.CHATML).render([{**HI[0], "when": datetime(2025, 1, 1)}])


def test_the_clock_can_be_asked():
    assert ChatTemplate("{{ strftime_now('%Y') }}").render(HI) == str(datetime.now().year)


def test_a_model_without_a_template_says_so(sentencepiece):
    with pytest.raises(ChatTemplateError, match=r"small\.gguf has no chat template"):
        sentencepiece.render_chat(HI)


def test_the_template_for_tools_is_used_when_there_are_tools(sentencepiece_metadata):
    metadata = {
        **sentencepiece_metadata,
        "tokenizer.chat_template": "plain",
        "tokenizer.chat_template.tool_use": "{{ tools | length }} tools",
    }
    tokenizer = Tokenizer.from_gguf(metadata, "f")
    assert tokenizer.render_chat(HI) == "plain"
    assert tokenizer.render_chat(HI, tools=TOOLS) == "3 tools"
    assert tokenizer.chat_template is not None
    assert tokenizer.chat_template.source == "plain"


def test_jinja_and_tokenizers_are_imported_late():
    program = "import sys, octavo.tokenization.tokenizer; print({'jinja2', 'tokenizers', 'numpy'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "set()\n"
    )
