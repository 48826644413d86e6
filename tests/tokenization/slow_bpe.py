"""Slow twins: both kinds of BPE, written to be read, for comparison with what the library computes."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

WHITE_SPACE = frozenset("\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000") | {
    chr(code) for code in range(0x2000, 0x200B)
}
CONTRACTIONS = ("'s", "'t", "'re", "'ve", "'m", "'ll", "'d")


def byte_alphabet() -> list[str]:
    """GPT-2's character for each byte: itself if it is printable Latin-1, else the next from U+0100 on."""
    printable = [chr(byte) for byte in range(256) if chr(byte).isprintable() and chr(byte) not in " \u00a0\u00ad"]
    substitutes = iter(range(0x100, 0x200))
    return [chr(byte) if chr(byte) in printable else chr(next(substitutes)) for byte in range(256)]


def _kind(character: str) -> str:
    if character in WHITE_SPACE:
        return "space"
    category = unicodedata.category(character)[0]
    return category if category in "LN" else "other"


def isolate_digits(text: str) -> Iterator[str]:
    """Each character of a number alone, the stretches between them whole."""
    start = 0
    for place, character in enumerate(text):
        if _kind(character) == "N":
            if start < place:
                yield text[start:place]
            yield character
            start = place + 1
    if start < len(text):
        yield text[start:]


def gpt2_words(text: str) -> Iterator[str]:
    """GPT-2's words: contractions, then runs of letters, of numbers or of other signs, each with at most one space."""
    start = 0
    while start < len(text):
        end = _word_end(text, start)
        yield text[start:end]
        start = end


def _word_end(text: str, start: int) -> int:
    for contraction in CONTRACTIONS:
        if text.startswith(contraction, start):
            return start + len(contraction)
    first = start + 1 if text[start] == " " and start + 1 < len(text) else start
    kind = _kind(text[first])
    end = first if kind != "space" else start
    while end < len(text) and _kind(text[end]) == kind:
        end += 1
    if kind == "space" and end < len(text) and end - start > 1:
        end -= 1  # the last one belongs to the word that follows, or stands alone
    return end


class SlowByteLevelBpe:
    """Byte-level BPE: the best-ranked neighbours are joined, the leftmost first, until none are in the list."""

    def __init__(self, tokens: Sequence[str], merges: Iterable[str], special: Iterable[str]) -> None:
        self.ids = {token: token_id for token_id, token in enumerate(tokens)}
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        self.alphabet = byte_alphabet()
        by_length = sorted(special, key=len, reverse=True)
        self.special = re.compile("(" + "|".join(map(re.escape, by_length)) + ")")

    def encode(self, text: str) -> list[int]:
        ids = []
        for place, stretch in enumerate(self.special.split(text)):
            if place % 2:
                ids.append(self.ids[stretch])
            else:
                for piece in isolate_digits(stretch):
                    for word in gpt2_words(piece):
                        ids += self._encode_word(word)
        return ids

    def _encode_word(self, word: str) -> list[int]:
        symbols = [self.alphabet[byte] for byte in word.encode() if self.alphabet[byte] in self.ids]
        while len(symbols) > 1:
            pairs = list(pairwise(symbols))
            best = min(pairs, key=lambda pair: self.ranks.get(pair, len(self.ranks)))
            if best not in self.ranks:
                break
            place = pairs.index(best)
            symbols[place : place + 2] = ["".join(best)]
        return [self.ids[symbol] for symbol in symbols]


def slow_sentencepiece(text: str, scores: Mapping[str, float], ids: Mapping[str, int]) -> list[int]:
    """SentencePiece BPE: the neighbours whose joined piece scores best are joined, the leftmost first; then bytes."""
    symbols = list("▁" + text.replace(" ", "▁")) if text else []
    while len(symbols) > 1:
        joined = [left + right for left, right in pairwise(symbols)]
        best = max(joined, key=lambda piece: scores.get(piece, float("-inf")))
        if best not in scores:
            break
        place = joined.index(best)
        symbols[place : place + 2] = [best]
    found: list[int] = []
    for symbol in symbols:
        if symbol in ids:
            found.append(ids[symbol])
        else:
            found += [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
    return found
