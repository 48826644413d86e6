"""The block table of one request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from octavo.kvcache.block import KVCacheBlock
from octavo.namespace import DEFAULT_NAMESPACE, Namespace


class BlockTable(Sequence[int]):
    """Block ids in the order of the tokens: entry ``i`` holds positions ``i * block_size … (i + 1) * block_size - 1``.

    ::

        tokens   |■■■■■■■■|■■■■■■■■|■■■·····|
        entries  |   7    |   2    |   9    |     num_tokens = 19, block_size = 8
                  └── num_indexed = 2 ──┘         found by others through the prefix cache

    Attributes:
        blocks: the blocks themselves; this request has one reference to each.
        num_tokens: token slots that the request has asked for; there are ``ceil(num_tokens / block_size)`` blocks.
        num_indexed: leading blocks that are in the prefix cache's tree.
        namespace: the part of the prefix cache that this request shares.
    """

    __slots__ = ("blocks", "namespace", "num_indexed", "num_tokens")

    def __init__(self, namespace: Namespace = DEFAULT_NAMESPACE) -> None:
        self.blocks: list[KVCacheBlock] = []
        self.num_tokens = 0
        self.num_indexed = 0
        self.namespace = namespace

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [block.block_id for block in self.blocks[index]]
        return self.blocks[index].block_id

    def __len__(self) -> int:
        return len(self.blocks)

    def __iter__(self) -> Iterator[int]:
        return (block.block_id for block in self.blocks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # a table changes

    def __repr__(self) -> str:
        return f"BlockTable({list(self)}, num_tokens={self.num_tokens})"
