"""Eviction policies: which cached block goes when a blank one is needed. One file each; the registry names them."""
