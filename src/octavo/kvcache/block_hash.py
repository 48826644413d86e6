"""The key of a full block in the prefix cache.

A block is found by a hash of everything that decides its contents: the prefix before it, its own tokens, and the
namespace (salt, adapter) at the root of the chain. A hash only finds candidates: tokens and parent are compared on
every hit, so a collision costs time, never truth. Python's hash of bytes is keyed by a secret of the process, so
nobody outside can aim for collisions.
"""

from __future__ import annotations

from octavo.namespace import Namespace


def hash_namespace(namespace: Namespace) -> int:
    """Where the chain of a namespace begins."""
    return hash((namespace.salt, namespace.adapter))


def hash_block(parent_hash: int, tokens: bytes) -> int:
    """Hash of the prefix that ends with this block."""
    return hash((parent_hash, tokens))
