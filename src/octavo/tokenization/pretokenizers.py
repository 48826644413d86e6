"""The pre-tokenizers that ``tokenizer.ggml.pre`` can name: how text is cut into the pieces inside which BPE merges run.

A GGUF file has only a name; the cuts behind it are those of the model's own ``tokenizer.json``. Every entry is written
as that file writes it (a normalizer, a chain of splits, whether a whole word may skip the merges), not as another
engine approximates it. A name that is not here is refused: cut wrongly, text still decodes, and the model is quietly
worse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_PUNCTUATION_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3_WORDS = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + _PUNCTUATION_AND_SPACE
QWEN2_WORDS = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _PUNCTUATION_AND_SPACE

# Words with their case: letters of the upper kind, then of the lower kind; letters without case count as both.
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|{_CASED_SPACE}"
)
DEEPSEEK3_WORDS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class PreTokenizerSpec:
    """What a name in ``tokenizer.ggml.pre`` stands for.

    Attributes:
        splits: regular expressions, applied one after the other; each match and each stretch between is a piece.
        isolates_digits: first of all, every character of a number is a piece of its own.
        normalizes_nfc: text is put into Unicode normal form C before anything else.
        ignores_merges: a piece that is a token as a whole is that token, whatever the merges would make of it.
        adds_bos: whether a file without ``tokenizer.ggml.add_bos_token`` means that a prompt begins with BOS.
    """

    splits: tuple[str, ...]
    isolates_digits: bool = False
    normalizes_nfc: bool = False
    ignores_merges: bool = False
    adds_bos: bool = False

    def build(self) -> PreTokenizer:
        """The chain that cuts text and spells its bytes in the byte-level alphabet."""
        from tokenizers import Regex, pre_tokenizers

        chain: list[PreTokenizer] = []
        if self.isolates_digits:
            chain.append(pre_tokenizers.Digits(individual_digits=True))
        if self.splits == (GPT2_WORDS,):
            # The byte-level step has this very expression built in, in a faster matcher.
            chain.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))
        else:
            chain.extend(pre_tokenizers.Split(Regex(split), behavior="isolated") for split in self.splits)
            chain.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        return pre_tokenizers.Sequence(chain)


_GPT2 = PreTokenizerSpec((GPT2_WORDS,))
_DIGITS_THEN_GPT2 = PreTokenizerSpec((GPT2_WORDS,), isolates_digits=True)
_LLAMA3 = PreTokenizerSpec((LLAMA3_WORDS,), ignores_merges=True, adds_bos=True)
_QWEN2 = PreTokenizerSpec((QWEN2_WORDS,), normalizes_nfc=True)

# The format's fallback for files that do not know their pre-tokenizer: punctuation, GPT-2 words, numbers in threes.
_DEFAULT = PreTokenizerSpec((r"[\p{P}\$\+<=>\^~\|]+", GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"))

PRE_TOKENIZERS: dict[str, PreTokenizerSpec] = {
    "default": _DEFAULT,
    "gpt-2": _GPT2,
    "smollm": _DIGITS_THEN_GPT2,
    "starcoder": _DIGITS_THEN_GPT2,
    "codeshell": _DIGITS_THEN_GPT2,
    "refact": _DIGITS_THEN_GPT2,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": PreTokenizerSpec((TEKKEN_WORDS,), ignores_merges=True, adds_bos=True),
    "deepseek-coder": PreTokenizerSpec(
        # The last range but one is written from U+0800 on purpose: that is how the model was trained.
        (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}")
    ),
    "deepseek-v3": PreTokenizerSpec((r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK3_WORDS)),
}
