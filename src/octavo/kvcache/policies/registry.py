"""Eviction policies by name."""

from __future__ import annotations

from collections.abc import Callable

from octavo.config import EVICTION_POLICIES
from octavo.kvcache.eviction import EvictionPolicy
from octavo.kvcache.policies.gdsf import GDSFPolicy
from octavo.kvcache.policies.lru import LRUPolicy
from octavo.kvcache.policies.radix_lru import RadixLRUPolicy
from octavo.kvcache.policies.reuse import ReusePolicy
from octavo.kvcache.policies.s3_fifo import S3FifoPolicy
from octavo.kvcache.policies.sieve import SievePolicy

_POLICIES: dict[str, Callable[[int, int], EvictionPolicy]] = {
    "lru": lambda num_blocks, block_size: LRUPolicy(),
    "radix-lru": lambda num_blocks, block_size: RadixLRUPolicy(),
    "sieve": lambda num_blocks, block_size: SievePolicy(),
    "s3-fifo": lambda num_blocks, block_size: S3FifoPolicy(num_blocks),
    "gdsf": lambda num_blocks, block_size: GDSFPolicy(block_size),
    "reuse": ReusePolicy,
}

POLICY_NAMES = EVICTION_POLICIES
assert tuple(_POLICIES) == POLICY_NAMES, tuple(_POLICIES)


def create_policy(name: str, num_blocks: int, block_size: int) -> EvictionPolicy:
    """A fresh policy for a pool of ``num_blocks`` blocks of ``block_size`` tokens; ``name`` is in ``POLICY_NAMES``."""
    return _POLICIES[name](num_blocks, block_size)
