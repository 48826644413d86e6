"""What the bytes of a quantised tensor mean: every GGUF block type, decoded to float32.

A row is a run of blocks; a block holds 32 or 256 elements as small integer *codes*, with a scale and perhaps a minimum
per block or per group of elements. One function per type takes ``blocks`` uint8 [B, block_bytes] and returns float32
[B, block_elements]; the drawing in its docstring is the block, bytes left to right, multi-byte numbers little-endian.

The layouts are those of the GGUF format (https://github.com/ggml-org/ggml, ``docs/gguf.md`` and ``ggml-common.h``).
Scale times code fits the 24 bits of a float32 mantissa, so each product is exact and a minimum costs one rounding.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from octavo.backends.host_tensor import TensorType

Bytes = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]

SLAB_ELEMENTS = 1 << 18
"""Elements decoded at a time: temporaries stay in the cache, and memory stays bounded by the output."""


def dequantize(type: TensorType, data: Bytes, num_columns: int) -> Float32:
    """Decode ``data`` uint8 [rows, row_bytes] to float32 [rows, num_columns]."""
    assert data.shape[1:] == (type.row_bytes(num_columns),), (type, data.shape, num_columns)
    decode = _DECODERS[type]
    output = np.empty((data.shape[0], num_columns), dtype=np.float32)
    if output.size == 0:
        return output
    slab_rows = max(1, SLAB_ELEMENTS // num_columns)
    for start in range(0, data.shape[0], slab_rows):
        slab = np.ascontiguousarray(data[start : start + slab_rows])
        blocks = slab.reshape(-1, type.block_bytes)
        output[start : start + slab_rows] = decode(blocks).reshape(-1, num_columns)
    return output


# ---- plain numbers ------------------------------------------------------------------------------------------------


def _decode_f32(blocks: Bytes) -> Float32:
    """``[ value f32 ]``"""
    return blocks.view(np.float32)


def _decode_f16(blocks: Bytes) -> Float32:
    """``[ value f16 ]``"""
    return blocks.view(np.float16).astype(np.float32)


def _decode_bf16(blocks: Bytes) -> Float32:
    """``[ value bf16 ]``, which is the upper half of a float32."""
    return (blocks.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


# ---- 32 elements, one scale ---------------------------------------------------------------------------------------


def _decode_q4_0(blocks: Bytes) -> Float32:
    """``[ d f16 | codes 16 B ]``: ``d * (code - 8)``."""
    codes = _nibbles(blocks[:, 2:18]).astype(np.int8) - 8
    return _half(blocks, 0) * codes.astype(np.float32)


def _decode_q4_1(blocks: Bytes) -> Float32:
    """``[ d f16 | m f16 | codes 16 B ]``: ``d * code + m``."""
    codes = _nibbles(blocks[:, 4:20])
    return _half(blocks, 0) * codes.astype(np.float32) + _half(blocks, 2)


def _decode_q5_0(blocks: Bytes) -> Float32:
    """``[ d f16 | fifth bits 4 B | codes 16 B ]``: ``d * (code - 16)``; bit ``i`` of the four bytes: element ``i``."""
    codes = (_nibbles(blocks[:, 6:22]) | _bits(blocks[:, 2:6]) << 4).astype(np.int8) - 16
    return _half(blocks, 0) * codes.astype(np.float32)


def _decode_q5_1(blocks: Bytes) -> Float32:
    """``[ d f16 | m f16 | fifth bits 4 B | codes 16 B ]``: ``d * code + m``."""
    codes = _nibbles(blocks[:, 8:24]) | _bits(blocks[:, 4:8]) << 4
    return _half(blocks, 0) * codes.astype(np.float32) + _half(blocks, 2)


def _decode_q8_0(blocks: Bytes) -> Float32:
    """``[ d f16 | codes 32 × int8 ]``: ``d * code``."""
    return _half(blocks, 0) * blocks[:, 2:34].view(np.int8).astype(np.float32)


IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32)
"""What the 4-bit codes of IQ4_NL and IQ4_XS stand for: a fixed non-linear scale of int8 values."""


def _decode_iq4_nl(blocks: Bytes) -> Float32:
    """``[ d f16 | codes 16 B ]``: ``d * IQ4_VALUES[code]``."""
    return _half(blocks, 0) * IQ4_VALUES[_nibbles(blocks[:, 2:18])]


# ---- 256 elements in groups of 16 or 32, each with its own small scale --------------------------------------------


def _decode_q2_k(blocks: Bytes) -> Float32:
    """``[ scales 16 B | codes 64 B | d f16 | dmin f16 ]``: 16 groups of 16.

    A scale byte holds the group's scale (low nibble) and minimum (high nibble):
    ``d * scale * code - dmin * minimum``.
    """
    scale_bytes = blocks[:, 0:16]
    scales = _half(blocks, 80) * (scale_bytes & 0x0F).astype(np.float32)
    minimums = _half(blocks, 82) * (scale_bytes >> 4).astype(np.float32)
    return _scale_groups(_pairs(blocks[:, 16:80]), scales, minimums)


def _decode_q3_k(blocks: Bytes) -> Float32:
    """``[ third bits 32 B | low codes 64 B | scales 12 B | d f16 ]``: 16 groups of 16.

    ``d * (scale - 32) * (code - 4)``, with 3-bit codes and 6-bit scales. Bit ``s`` of byte ``l`` of the third bits
    belongs to element ``32 * s + l``. Of scale ``i``, the low four bits are nibble ``i // 8`` of byte ``i % 8``, the
    high two are bits ``2 * (i // 4)`` and up of byte ``8 + i % 4``.
    """
    low = _nibbles(blocks[:, 96:104])  # [B, 16]
    high = _fields(blocks[:, 104:108], (0, 2, 4, 6), 0x03)  # [B, 4, 4] → scale 4 * shift + byte
    scales = (low | high.reshape(-1, 16) << 4).astype(np.int8) - 32
    third_bits = _fields(blocks[:, 0:32], range(8), 0x01).reshape(-1, 256)
    codes = (_pairs(blocks[:, 32:96]) | third_bits << 2).astype(np.int8) - 4
    return _scale_groups(codes, _half(blocks, 108) * scales.astype(np.float32))


def _decode_q4_k(blocks: Bytes) -> Float32:
    """``[ d f16 | dmin f16 | scales and minimums 12 B | codes 128 B ]``: 8 groups of 32.

    ``d * scale * code - dmin * minimum``. Each 32 bytes of codes are two groups: low nibbles, then high nibbles.
    """
    scales, minimums = _six_bit_scales(blocks[:, 4:16])
    codes = _fields(blocks[:, 16:144].reshape(-1, 4, 32), (0, 4), 0x0F).reshape(-1, 256)
    return _scale_groups(codes, _half(blocks, 0) * scales, _half(blocks, 2) * minimums)


def _decode_q5_k(blocks: Bytes) -> Float32:
    """``[ d f16 | dmin f16 | scales and minimums 12 B | fifth bits 32 B | codes 128 B ]``: as Q4_K, with a fifth bit.

    Bit ``g`` of byte ``l`` of the fifth bits belongs to element ``l`` of group ``g``.
    """
    scales, minimums = _six_bit_scales(blocks[:, 4:16])
    fifth_bits = _fields(blocks[:, 16:48], range(8), 0x01).reshape(-1, 256)
    codes = _fields(blocks[:, 48:176].reshape(-1, 4, 32), (0, 4), 0x0F).reshape(-1, 256) | fifth_bits << 4
    return _scale_groups(codes, _half(blocks, 0) * scales, _half(blocks, 2) * minimums)


def _decode_q6_k(blocks: Bytes) -> Float32:
    """``[ low nibbles 128 B | high pairs 64 B | scales 16 × int8 | d f16 ]``: 16 groups of 16.

    ``d * scale * (code - 32)``. Each half of the block is 64 bytes of nibbles (64 low ones, then 64 high ones) and 32
    bytes of pairs (the lowest pairs of all bytes, then the next, …).
    """
    low = _fields(blocks[:, 0:128].reshape(-1, 2, 64), (0, 4), 0x0F).reshape(-1, 256)
    codes = (low | _pairs(blocks[:, 128:192]) << 4).astype(np.int8) - 32
    scales = blocks[:, 192:208].view(np.int8).astype(np.float32)
    return _scale_groups(codes, _half(blocks, 208) * scales)


def _decode_iq4_xs(blocks: Bytes) -> Float32:
    """``[ d f16 | high scale pairs 2 B | low scale nibbles 4 B | codes 128 B ]``: 8 groups of 32.

    ``d * (scale - 32) * IQ4_VALUES[code]`` with 6-bit scales in reading order; each 16 bytes of codes are one group.
    """
    low = _fields(blocks[:, 4:8, None], (0, 4), 0x0F).reshape(-1, 8)
    high = _fields(blocks[:, 2:4, None], (0, 2, 4, 6), 0x03).reshape(-1, 8)
    scales = (low | high << 4).astype(np.int8) - 32
    codes = _fields(blocks[:, 8:136].reshape(-1, 8, 16), (0, 4), 0x0F).reshape(-1, 256)
    return _scale_groups(IQ4_VALUES[codes], _half(blocks, 0) * scales.astype(np.float32))


# ---- pieces that several types share ------------------------------------------------------------------------------


def _half(blocks: Bytes, offset: int) -> Float32:
    """The float16 at byte ``offset`` of each block, as a column [B, 1]."""
    return np.ascontiguousarray(blocks[:, offset : offset + 2]).view(np.float16).astype(np.float32)


def _fields(packed: Bytes, shifts: range | tuple[int, ...], mask: int) -> Bytes:
    """Bit fields of ``packed`` [..., n] → [..., len(shifts), n]: all the bytes at the first shift, then at the next."""
    return packed[..., None, :] >> np.array(shifts, dtype=np.uint8)[:, None] & np.uint8(mask)


def _nibbles(packed: Bytes) -> Bytes:
    """[B, n] → [B, 2 n]: the low nibbles of all bytes, then the high ones."""
    return _fields(packed, (0, 4), 0x0F).reshape(len(packed), -1)


def _pairs(packed: Bytes) -> Bytes:
    """[B, 64] → [B, 256]: per 32 bytes, the lowest two bits of all, then the next two, and so on."""
    return _fields(packed.reshape(-1, 2, 32), (0, 2, 4, 6), 0x03).reshape(-1, 256)


def _bits(packed: Bytes) -> Bytes:
    """[B, n] → [B, 8 n]: the bits of each byte, lowest first."""
    return np.unpackbits(packed, axis=1, bitorder="little")


def _six_bit_scales(packed: Bytes) -> tuple[Float32, Float32]:
    """Q4_K's and Q5_K's 12 bytes [B, 12] → scales [B, 8] and minimums [B, 8], six bits each.

    ``[ scales 0-3 | minimums 0-3 | scales 4-7 (low nibble), minimums 4-7 (high nibble) ]``, a byte per number; the
    spare upper two bits of the first eight bytes are the high bits of scales 4-7 and of minimums 4-7.
    """
    scale_bytes, minimum_bytes, mixed = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([scale_bytes & 0x3F, mixed & 0x0F | scale_bytes >> 6 << 4], axis=1)
    minimums = np.concatenate([minimum_bytes & 0x3F, mixed >> 4 | minimum_bytes >> 6 << 4], axis=1)
    return scales.astype(np.float32), minimums.astype(np.float32)


def _scale_groups(codes: npt.NDArray[np.generic], scales: Float32, minimums: Float32 | None = None) -> Float32:
    """``scale * code - minimum`` by groups: codes [B, 256], scales and minimums [B, groups] → [B, 256]."""
    grouped = codes.reshape(*scales.shape, -1).astype(np.float32)
    grouped *= scales[:, :, None]
    if minimums is not None:
        grouped -= minimums[:, :, None]
    return grouped.reshape(len(codes), -1)


_DECODERS: dict[TensorType, Callable[[Bytes], Float32]] = {
    TensorType.F32: _decode_f32,
    TensorType.F16: _decode_f16,
    TensorType.BF16: _decode_bf16,
    TensorType.Q4_0: _decode_q4_0,
    TensorType.Q4_1: _decode_q4_1,
    TensorType.Q5_0: _decode_q5_0,
    TensorType.Q5_1: _decode_q5_1,
    TensorType.Q8_0: _decode_q8_0,
    TensorType.Q2_K: _decode_q2_k,
    TensorType.Q3_K: _decode_q3_k,
    TensorType.Q4_K: _decode_q4_k,
    TensorType.Q5_K: _decode_q5_k,
    TensorType.Q6_K: _decode_q6_k,
    TensorType.IQ4_NL: _decode_iq4_nl,
    TensorType.IQ4_XS: _decode_iq4_xs,
}
