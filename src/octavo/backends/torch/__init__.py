"""The torch backend: plain PyTorch ops, on any device PyTorch has. Needs the extra ``octavo[torch]``."""

from octavo.backends.torch.backend import TorchBackend

__all__ = ["TorchBackend"]
