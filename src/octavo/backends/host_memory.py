"""How much of the machine's memory this process may still take."""

from __future__ import annotations

from pathlib import Path

_CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def free_host_memory_bytes(proc: Path = Path("/proc/meminfo")) -> int:
    """What the kernel calls available, or what the control group still allows, whichever is less."""
    free = _mem_available_bytes(proc)
    for limit_file, usage_file in _CGROUP_FILES:
        limit, usage = _read_bytes(limit_file), _read_bytes(usage_file)
        if limit is not None and usage is not None:
            free = min(free, max(limit - usage, 0))
    return free


def _mem_available_bytes(proc: Path) -> int:
    for line in proc.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"{proc} has no MemAvailable")


def _read_bytes(path: str) -> int | None:
    """``None``: no such file, or no limit in it."""
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None
