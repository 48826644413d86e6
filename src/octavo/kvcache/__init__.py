"""The paged memory: blocks, the pool, block tables, the prefix cache. Pure Python."""
