"""What the native backend decides about the machine, and its sampling at the edges."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from octavo.backends.host_tensor import HostTensor
from octavo.backends.native import NativeBackend, cpu_plan
from octavo.backends.native._native import cgroup_quota_cores
from octavo.errors import BackendError


def test_forcing_an_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for isa in cpu_plan().available_isas:
        monkeypatch.setenv("OCTAVO_ISA", isa)
        plan = cpu_plan()
        assert (plan.isa, plan.isa_reason) == (isa, "OCTAVO_ISA")
    monkeypatch.setenv("OCTAVO_ISA", "mmx")
    with pytest.raises(BackendError, match="OCTAVO_ISA=mmx is unknown; this machine has scalar"):
        NativeBackend()


def test_threads_follow_the_affinity_mask() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from octavo.backends.native import NativeBackend, cpu_plan\n"
        "print(cpu_plan().num_threads, NativeBackend().num_threads, cpu_plan().threads_reason)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=True)
    assert result.stdout.startswith("1 1 affinity mask of 1 of ")


def test_cgroup_v2_quota_is_the_tightest_of_all_ancestors(tmp_path: Path) -> None:
    proc = tmp_path / "cgroup"
    proc.write_text("0::/a/b\n")
    mount = tmp_path / "fs"
    (mount / "a" / "b").mkdir(parents=True)
    assert cgroup_quota_cores(str(proc), str(mount)) == 0
    (mount / "a" / "b" / "cpu.max").write_text("max 100000\n")
    assert cgroup_quota_cores(str(proc), str(mount)) == 0
    (mount / "a" / "cpu.max").write_text("150000 100000\n")
    assert cgroup_quota_cores(str(proc), str(mount)) == 1.5
    (mount / "a" / "b" / "cpu.max").write_text("50000 100000\n")
    assert cgroup_quota_cores(str(proc), str(mount)) == 0.5


def test_cgroup_v1_quota(tmp_path: Path) -> None:
    proc = tmp_path / "cgroup"
    proc.write_text("5:memory:/x\n4:cpu,cpuacct:/job\n")
    folder = tmp_path / "fs" / "cpu,cpuacct" / "job"
    folder.mkdir(parents=True)
    (folder / "cpu.cfs_period_us").write_text("100000\n")
    (folder / "cpu.cfs_quota_us").write_text("-1\n")
    assert cgroup_quota_cores(str(proc), str(tmp_path / "fs")) == 0
    (folder / "cpu.cfs_quota_us").write_text("250000\n")
    assert cgroup_quota_cores(str(proc), str(tmp_path / "fs")) == 2.5


def test_one_backend_serves_many_python_threads() -> None:
    backend = NativeBackend(num_threads=2)
    rng = np.random.default_rng(0)
    weight = backend.prepare_weight([HostTensor.from_array("w", rng.standard_normal((200, 64)).astype(np.float32))])
    inputs = [rng.standard_normal((n, 64)).astype(np.float32) for n in (1, 5, 17, 40)]
    expected = [backend.linear(x, weight) for x in inputs]
    wrong: list[int] = []

    def work(index: int) -> None:
        for _ in range(100):
            if not np.array_equal(backend.linear(inputs[index], weight), expected[index]):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="threads wait for each other on two cores and more")
def test_a_busy_neighbour_of_the_lowest_priority_takes_little() -> None:
    """Threads that wait in a loop for one that is not running lose not a part of their speed, but nearly all."""
    backend = NativeBackend()
    weight = backend.prepare_weight([HostTensor.from_array("w", np.ones((1024, 576), np.float32))])
    x = np.ones((1, 576), np.float32)

    def seconds() -> float:
        began = time.perf_counter()
        for _ in range(200):
            backend.linear(x, weight)
        return time.perf_counter() - began

    code = (
        "import os; os.nice(19); os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})\n"
        "print(flush=True)\n"
        "while True: pass"
    )
    alone, beside = [], []
    for _ in range(3):
        alone.append(seconds())
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as neighbour:
            assert neighbour.stdout is not None
            neighbour.stdout.readline()
            beside.append(seconds())
            neighbour.kill()
    assert statistics.median(beside) < 10 * statistics.median(alone)


def test_wrong_arrays_are_refused_by_name() -> None:
    backend = NativeBackend(num_threads=1)
    weight = backend.prepare_weight([HostTensor.from_array("w", np.ones((4, 8), np.float32))])
    with pytest.raises(BackendError, match=r"x must be \[any, 8\], not \[2, 7\]"):
        backend.linear(np.zeros((2, 7), np.float32), weight)
    with pytest.raises(BackendError, match="x must be a float32 array"):
        backend.linear(np.zeros((2, 8), np.float64), weight)
    with pytest.raises(BackendError, match="contiguous in its last dimension"):
        backend.linear(np.zeros((8, 2), np.float32).T, weight)
    with pytest.raises(BackendError, match="token id 4 is not one of the 4"):
        backend.embedding(weight, np.array([4], np.int32))
    with pytest.raises(BackendError, match="bias must have 4 elements, not 3"):
        backend.linear(np.zeros((2, 8), np.float32), weight, np.zeros(3, np.float32))
