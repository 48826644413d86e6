"""The reference backend: every op in numpy, written for reading. The others are checked against it."""

from octavo.backends.reference.backend import ReferenceBackend

__all__ = ["ReferenceBackend"]
