import os
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from bench.host import cpu_cores, cpu_name, host_memory_bytes
from bench.recording.environment import describe_run, fingerprint, git_state, new_run_id, training_variables
from bench.schema import Device

GPUS = tuple(Device(index=i, name="NVIDIA H200", uuid=f"GPU-{i}") for i in range(2))


def test_describe_run_finds_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    run = describe_run(run_id="r", preset="quick", device_type="cpu", seed=7, command_line="x", devices=GPUS)
    assert run.started_at.tzinfo == timezone.utc and run.finished_at is None
    assert 1 <= run.cpu_cores <= (os.cpu_count() or 1) and run.host_memory_bytes > 2**20
    assert run.cpu_name and run.hostname and "Linux" in run.os_name
    assert {"numpy", "pandas", "pyarrow"} <= {item.name for item in run.packages}
    assert ("NCCL_DEBUG", "INFO") in [(item.name, item.value) for item in run.environment_variables]
    assert len(run.fingerprint) == 16


def test_only_variables_that_change_training_are_kept() -> None:
    given = {"AWS_SECRET_ACCESS_KEY": "s", "OMP_NUM_THREADS": "1", "CUBLAS_WORKSPACE_CONFIG": ":8", "MY_CUDA_X": "1",
             "NVIDIA_TF32_OVERRIDE": "0", "PATH": "/", "TORCHINDUCTOR_CACHE_DIR": "/c"}  # fmt: skip
    names = [item.name for item in training_variables(given)]
    assert names == ["CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS", "TORCHINDUCTOR_CACHE_DIR"]


def test_fingerprint_counts_machines_and_not_cards() -> None:
    base = fingerprint("cuda", GPUS, "EPYC", 16, 128 * 2**30)
    assert base == fingerprint("cuda", [replace(gpu, uuid="other") for gpu in GPUS], "EPYC", 16, 128 * 2**30 + 1000)
    others = [
        fingerprint("cpu", GPUS, "EPYC", 16, 128 * 2**30),
        fingerprint("cuda", GPUS[:1], "EPYC", 16, 128 * 2**30),
        fingerprint("cuda", GPUS, "Xeon", 16, 128 * 2**30),
        fingerprint("cuda", GPUS, "EPYC", 8, 128 * 2**30),
        fingerprint("cuda", GPUS, "EPYC", 16, 64 * 2**30),
    ]
    assert len({base, *others}) == 6


def test_fingerprint_counts_links_and_is_what_it_was_without() -> None:
    def of(gpus: tuple[Device, ...], topology: str | None) -> str:
        return fingerprint("cuda", gpus, "EPYC", 16, 128 * 2**30, topology)

    # sha256 of "cuda\nNVIDIA H200\nEPYC\n16\n128": runs on one GPU that are stored keep their machine.
    assert of(GPUS[:1], None) == "f04357378a8e67f9"
    assert len({of(GPUS, text) for text in (None, "0-1 NV18", "0-1 SYS")}) == 3


def test_run_ids_sort_by_time_and_do_not_collide() -> None:
    now = datetime(2026, 11, 29, 23, 30, 22, tzinfo=timezone.utc)
    assert new_run_id(now).startswith("20261129T233022Z-")
    assert new_run_id(now) < new_run_id(now.replace(second=23))
    assert len({new_run_id(now) for _ in range(20)}) > 15


@pytest.mark.parametrize(
    ("files", "own", "cores"),
    [
        ({"box/job/cpu.max": "max 100000", "box/cpu.max": "150000 100000"}, "0::/box/job\n", 1),
        ({"cpu.max": "50000 100000"}, "0::/elsewhere\n", 1),
        ({"cpu/g/cpu.cfs_quota_us": "100000", "cpu/g/cpu.cfs_period_us": "100000"}, "3:cpu,cpuacct:/g\n", 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "3:cpu:/\n", None),
        ({"cpu.max": "900000000 100000"}, "0::/\n", None),
        ({}, "nonsense\n", None),
    ],
)
def test_cores_heed_the_container(tmp_path: Path, files: dict[str, str], own: str, cores: int | None) -> None:
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "own").write_text(own)
    allowed = len(os.sched_getaffinity(0))
    assert cpu_cores(tmp_path / "cgroup", tmp_path / "own") == (cores or allowed)


def test_memory_heeds_the_container(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("0::/job\n")
    free = host_memory_bytes(tmp_path, tmp_path / "own")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "memory.max").write_text("1048576\n")
    assert host_memory_bytes(tmp_path, tmp_path / "own") == 2**20 < free
    (tmp_path / "job" / "memory.max").write_text("max\n")
    assert host_memory_bytes(tmp_path, tmp_path / "absent") == free
    assert cpu_name()


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def test_git_state_of_the_checkout_that_holds_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    package = tmp_path / "bench"
    package.mkdir()
    (package / "__init__.py").write_text("")
    assert git_state(package) == (None, None)
    git(tmp_path, "init", "-q")
    assert git_state(package) == (None, None), "not tracked: installed below some other repository"
    git(tmp_path, "add", ".")
    assert git_state(package) == (None, True), "no commit yet"
    git(tmp_path, "commit", "-q", "-m", "first")
    commit, dirty = git_state(package)
    assert commit is not None and len(commit) == 40 and dirty is False
    (package / "__init__.py").write_text("changed = 1\n")
    assert git_state(package) == (commit, True)
    monkeypatch.setenv("PATH", "")
    assert git_state(package) == (None, None), "no git on this machine"


def test_importing_bench_is_light() -> None:
    code = "import sys, bench; bench.__version__; print([m for m in ('torch', 'pandas') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
