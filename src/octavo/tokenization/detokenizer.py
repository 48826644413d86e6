"""Token ids to text, as they are generated: one token in, the text that is now certain out."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from octavo.tokenization.stop_strings import StopStringMatcher
from octavo.tokenization.tokenizer import Tokenizer

_MAX_CHARACTER_BYTES = 4  # of UTF-8
_new_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class IncrementalDetokenizer:
    """The text of one sample, delta by delta.

    A token's exact bytes go through an incremental UTF-8 decoder, so a token costs the same at any length, and a
    character split across tokens comes out when its last byte is there. The deltas, the one of :meth:`finish` included,
    join to ``tokenizer.decode(ids)``; after a prompt, to what the ids add to the prompt's text: a SentencePiece token's
    leading space stays, and a character that the prompt began is completed.

    Attributes:
        num_tokens: tokens taken.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        stop: Sequence[str] = (),
        include_stop_str_in_output: bool = False,
        min_tokens: int = 0,
    ) -> None:
        """Args:
        prompt_ids: what comes before; its text is not output.
        skip_special_tokens: special tokens have no text.
        stop: strings that end the text; they are kept out of it unless ``include_stop_str_in_output``.
        min_tokens: a stop string that completes within the first ``min_tokens`` tokens is text like any other.
        """
        self._pieces = tokenizer.pieces
        self._skipped_ids = tokenizer.special_ids if skip_special_tokens else frozenset[int]()
        self._decode = _new_utf8_decoder(errors="replace").decode
        self._matcher = StopStringMatcher(stop, include_in_output=include_stop_str_in_output) if stop else None
        self._min_tokens = min_tokens
        self._strips_next_space = tokenizer.strips_leading_space
        self._deltas: list[str] = []
        self.num_tokens = 0
        self._follow_prompt(prompt_ids)

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text; ``None`` until then."""
        return None if self._matcher is None else self._matcher.matched

    @property
    def text(self) -> str:
        """All deltas so far."""
        if len(self._deltas) > 1:
            self._deltas = ["".join(self._deltas)]
        return self._deltas[0] if self._deltas else ""

    def append(self, token_id: int) -> str:
        """Take one generated token; returns the new text, often empty.

        After a stop string (see :attr:`stop_string`) nothing more may be appended. A token that ends the sequence
        and shall leave no text is not appended at all.
        """
        self.num_tokens += 1
        if token_id in self._skipped_ids:
            return ""
        delta = self._decode(self._pieces[token_id])
        if delta:
            delta = self._output(delta)
        return delta

    def append_many(self, token_ids: Iterable[int]) -> str:
        """Take several tokens, up to the one that completes a stop string; :attr:`num_tokens` says how far it came."""
        deltas = []
        for token_id in token_ids:
            deltas.append(self.append(token_id))
            if self.stop_string is not None:
                break
        return "".join(deltas)

    def finish(self) -> str:
        """No token follows: returns what was kept back, an unfinished character as U+FFFD. Call it once, at the end."""
        if self.stop_string is not None:
            return ""
        delta = self._decode(b"", True)
        if delta:
            delta = self._output(delta)
        if self._matcher is not None and self._matcher.matched is None:
            held = self._matcher.flush()
            self._deltas.append(held)
            delta += held
        return delta

    def _output(self, delta: str) -> str:
        if self._strips_next_space:
            delta = delta.removeprefix(" ")
            self._strips_next_space = False
        if self._matcher is not None:
            delta = self._matcher.feed(delta, may_stop=self.num_tokens > self._min_tokens)
        self._deltas.append(delta)
        return delta

    def _follow_prompt(self, prompt_ids: Sequence[int]) -> None:
        """Bring the decoder to where the prompt leaves it, from the prompt's last bytes alone."""
        tail = b""
        for token_id in reversed(prompt_ids):
            if token_id not in self._skipped_ids:
                tail = self._pieces[token_id] + tail
            if len(tail) >= _MAX_CHARACTER_BYTES:
                break
        if self._decode(tail):
            self._strips_next_space = False
