"""From a model's name to its files: ``default``, a path, or ``org/name`` on the Hugging Face Hub.

Nothing here touches the network unless a model has to be fetched.
"""

from __future__ import annotations

import re
from pathlib import Path

from octavo.errors import DownloadError, ModelNotFoundError
from octavo.weights.default_model import fetch_default_model

NAME_FORMS = """\
A model is named by
  default                  SmolLM2-135M-Instruct, fetched once
  path/to/model.gguf       a GGUF file
  path/to/folder           a Hugging Face folder: config.json, tokenizer.json, *.safetensors
  org/name                 a repository of safetensors on the Hugging Face Hub
  org/name/file.gguf       one GGUF file of a repository on the Hub"""

_HUB_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_HUB_REPOSITORY = re.compile(rf"{_HUB_PART}/{_HUB_PART}")
_HUB_FILE = re.compile(rf"(?P<repository>{_HUB_PART}/{_HUB_PART})/(?P<file>(?:{_HUB_PART}/)*{_HUB_PART}\.gguf)")


def resolve_model(name: str) -> Path:
    """The file or folder of a model, fetched if it is not here yet.

    Raises:
        ModelNotFoundError: the name has no known form, or leads nowhere.
        DownloadError: the model had to be fetched, and that failed.
    """
    if name == "default":
        return fetch_default_model()
    path = Path(name).expanduser()
    if name and path.exists():
        return path
    if match := _HUB_FILE.fullmatch(name):
        return _fetch_hub_file(match["repository"], match["file"])
    if _HUB_REPOSITORY.fullmatch(name) and not name.endswith(".gguf"):
        return _fetch_hub_folder(name)
    raise ModelNotFoundError(f"{name!r} is no model: there is no such file or folder.\n{NAME_FORMS}")


def _fetch_hub_folder(repository: str) -> Path:
    """Fetch what a Hugging Face folder needs; other formats of the same weights stay where they are."""
    import huggingface_hub

    try:
        folder = huggingface_hub.snapshot_download(
            repository,
            allow_patterns=["*.json", "*.safetensors", "*.jinja", "tokenizer*", "*.model"],
            ignore_patterns=["*/*", "consolidated*"],
        )
    except Exception as error:
        raise _hub_error(repository, error) from error
    return Path(folder)


def _fetch_hub_file(repository: str, file: str) -> Path:
    import huggingface_hub

    try:
        return Path(huggingface_hub.hf_hub_download(repository, file))
    except Exception as error:
        raise _hub_error(f"{repository}/{file}", error) from error


def _hub_error(name: str, error: Exception) -> ModelNotFoundError | DownloadError:
    """The library raises errors of many kinds (its own, the HTTP client's, ``OSError``); two matter to a user."""
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError, RepositoryNotFoundError

    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    missing = isinstance(error, RepositoryNotFoundError | EntryNotFoundError)
    if missing and not isinstance(error, LocalEntryNotFoundError):  # which says "offline", not "missing"
        return ModelNotFoundError(f"{name}: not on the Hugging Face Hub, or private: {reason}\n{NAME_FORMS}")
    return DownloadError(
        f"{name}: fetching it from the Hugging Face Hub failed: {reason}. "
        "Check the connection, or name a model that is already here by its path."
    )
