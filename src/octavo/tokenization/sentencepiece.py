"""SentencePiece's BPE, in terms of the merge lists and byte tokens that other BPE implementations understand.

SentencePiece has no list of merges. It joins the two neighbours whose joined piece has the best score, the leftmost
among equals, until no joined piece is in the vocabulary (Kudo and Richardson, 2018). So every way to cut a piece into
two pieces is a merge, and the piece's score is its rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

SPACE = "\u2581"
"""What SentencePiece writes for a space: the lower one eighth block."""

_BYTES = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}


def bytes_of_piece(piece: str) -> bytes:
    """The exact bytes of a piece: one byte for ``<0xNN>``, text with real spaces for all others."""
    byte = _BYTES.get(piece)
    return piece.replace(SPACE, " ").encode() if byte is None else byte


def merges_from_scores(pieces: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """The merges that a scored vocabulary implies, best first.

    Args:
        pieces: spelling → id, of the pieces that merges may make and join.
        scores: per id, the larger the earlier.

    A merge list ranks the cuts of one piece, where SentencePiece takes the leftmost place. The two can disagree only
    where cuts overlap in the text, ``x y z`` with ``xy == yz``, a run of one repeated unit; runs are joined from their
    left end, so the odd unit stands at their right end, and the cut with the longer left part comes first.
    """
    ranked = []
    for piece, token_id in pieces.items():
        score = -scores[token_id]
        for length in range(len(piece) - 1, 0, -1):
            left, right = piece[:length], piece[length:]
            if left in pieces and right in pieces:
                ranked.append((score, token_id, -length, left, right))
    ranked.sort()
    return [(left, right) for _, _, _, left, right in ranked]
