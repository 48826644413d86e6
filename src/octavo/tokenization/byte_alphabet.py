"""The byte-level alphabet of GPT-2: one printable character per byte, in which byte-level vocabularies are spelled.

Printable bytes of Latin-1 stand for themselves; the others take the code points from U+0100 on, in order.
"""

from __future__ import annotations


def _characters() -> list[str]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    characters = []
    substitutes = 0
    for byte in range(256):
        if byte in printable:
            characters.append(chr(byte))
        else:
            characters.append(chr(0x100 + substitutes))
            substitutes += 1
    return characters


CHARACTER_TO_BYTE: dict[str, int] = {character: byte for byte, character in enumerate(_characters())}


def bytes_of_spelling(spelling: str) -> bytes:
    """The bytes that a byte-level token stands for; a token spelled outside the alphabet is plain text."""
    try:
        return bytes([CHARACTER_TO_BYTE[character] for character in spelling])
    except KeyError:
        return spelling.encode()
