"""Makes the golden files of the default model's tokenizer; needs transformers and the default model's GGUF file.

    python tests/golden/tokenization/make_golden.py PATH/TO/SmolLM2-135M-Instruct.Q4_1.gguf

``smollm2_vocabulary.json.xz`` holds the ``tokenizer.*`` metadata of the file (Apache-2.0, as the model), so that the
tests need no download. ``smollm2_ids.json`` holds strings and the ids that transformers gives them. Transformers reads
the vocabulary and the merges from the GGUF file, but does not know the pre-tokenizer ``smollm``; it is given the one
that the model's own tokenizer.json has: each digit alone, then byte-level words.
"""

from __future__ import annotations

import json
import lzma
import random
import sys
from pathlib import Path

HERE = Path(__file__).parent

SENTENCES = [
    "The capital of France is Paris.",
    "I'm sure they'll say it's fine; we've seen you'd DON'T can't 'tis o'clock 'Re 'S",
    "Příliš žluťoučký kůň úpěl ďábelské ódy.",
    "Nechť již hříšné saxofony ďáblů rozezvučí síň úděsnými tóny waltzu, tanga a quickstepu.",
    "ภาษาไทยง่ายนิดเดียว กรุงเทพมหานคร",
    "مرحبا بالعالم! كيف حالك اليوم؟ ٠١٢٣٤٥٦٧٨٩",
    "你好，世界！今天天气怎么样？我们去吃饭吧。",
    "こんにちは世界。カタカナとひらがな、漢字。",
    "안녕하세요 세계, 오늘은 날씨가 좋네요.",
    "Γειά σου Κόσμε — Привет, мир! — שלום עולם",
    "नमस्ते दुनिया, आप कैसे हैं?",
    "emoji 😀👍🏽🇨🇿👨‍👩‍👧‍👦❤️‍🔥 end",
    "cafe\u0301 vs café, A\u030angstro\u0308m, z\u0335\u0321a\u0337lgo\u0336",
    "½ ² ³ Ⅷ ④ ٣ ७ 一二三 1st 2nd 3.14159 1,000,000 0xFF 1e-9 12345678901234567890",
    "user@example.com https://example.org/a/b?c=d&e=%20f#g C:\\Windows\\System32",
]
CODE = [
    "def f(x: int) -> list[str]:\n\treturn [str(i) for i in range(x)]  # comment\n",
    'int main(void) {\n    printf("%d\\n", 42);\n    return 0;\n}\n',
    "SELECT * FROM t WHERE a >= 10 AND b <> 'x';",
    '{"a": [1, 2.5e3, null], "b": {"c": true}}',
    "<div class='x'>\r\n  <p>&nbsp;</p>\r\n</div>",
    "x=1;y+=2;z**=3;a<<=b>>c&&d||!e?f:g::h->i...j@k#l$m%n^o~p`q|r",
    "for (;;) {}\n\n\n\n// ====================\n#----------------\n",
    "let s = `a${b}c`; /* multi\nline */ =>",
]
SPACES = [
    "", " ", "  ", "   ", "\t", "\n", "\r", "\r\n", "\n\n", " \n ", "\t\t\tx", "a  b", "a   b", " a", "  a", "a ",
    "a  ",
    "\u00a0", "a\u00a0b", "\u3000", "a\u3000b", "\u2003x", "\u200b", "a\u200bb", "\ufeffx", "\u2028", "\u0085",
    "\x0b\x0c",
    "1 2", "1  2", "1   2", " 1", "  1", "\n1", "\n\n1", "x \n1", "\t1", "a\n 1 \n2", "   \n   1",
]  # fmt: skip
ODD = [
    "\x00", "a\x00b", "\x00\x00", "\x01\x02\x03", "\x04", "a\x04b", "\x1b[0m", "\x7f", "\u0080", "\ufffd", "\uffff",
    "\U0010ffff",
    "\u0300", "\u0300\u0301", "a\u0300\u0301\u0302", "\u202e\u202d", "ǅ", "ß", "ﬁ", "İ", "ſ", "K", "Ω", "\U0001d54f",
    "\U000e0041", "\U00020000", "Ġ", "Ċ", "ĠĠ", "▁", "▁▁a", "<0x0A>", "Ä ä Ö ö",
    "<|im_start|>", "<|im_end|>", "<|im_start|>user\nHi<|im_end|>\n", "<|endoftext|>", "a<|im_end|>b", " <|im_end|> ",
    "<|im_end", "|im_end|>", "< |im_end|>", "<|IM_END|>", "<|im_end|><|im_end|>", "<repo_name>x<file_sep>y",
    "<|im_start|><",
    "<jupyter_code>1", "<s>", "</s>", "[INST]", "<issue_start>  <issue_comment>",
]  # fmt: skip
RUNS = [character * count for character in " a1-=.\n\té漢😀" for count in (5, 17, 64, 257)]


def strings() -> list[str]:
    """At least 500 strings, no two alike, the same in every run."""
    source = random.Random(2024)
    texts = [*SENTENCES, *CODE, *SPACES, *ODD, *RUNS]
    parts = [*SENTENCES, *CODE, *SPACES[1:], *ODD]
    while len(texts) < 420:
        chosen = source.choices(parts, k=source.randint(2, 4))
        texts.append("".join(part[source.randrange(len(part)) :][: source.randint(1, 30)] for part in chosen))
    alphabet = "  \n\t019aZé ž漢ไ٣😀\u0301'\"-_.,;<|>/\\\u00a0\r"
    while len(texts) < 600:
        texts.append("".join(source.choices(alphabet, k=source.randint(1, 24))))
    return list(dict.fromkeys(texts))


def main(path: Path) -> None:
    """Write both files next to this one."""
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    from octavo.weights.gguf import read_gguf

    metadata = {key: value for key, value in read_gguf(path).metadata.items() if key.startswith("tokenizer.")}
    packed = lzma.compress(json.dumps(metadata, ensure_ascii=False).encode(), preset=9)
    (HERE / "smollm2_vocabulary.json.xz").write_bytes(packed)

    reference = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    reference.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    entries = [{"text": text, "ids": reference.encode(text)} for text in strings()]
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    (HERE / "smollm2_ids.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    print(f"{len(entries)} strings, {len(packed)} bytes of vocabulary")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
