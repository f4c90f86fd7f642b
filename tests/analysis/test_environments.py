"""Differences between the environments of two runs, and when their figures may be compared."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from bench.analysis.environments import Difference, differences, other_software, why_not_comparable
from bench.recording.environment import fingerprint
from bench.recording.reader import read_run
from bench.schema import Device, NameValue, Run
from tests.recording.made_up import cpu_run, made_run

NOT_THE_ENVIRONMENT = {
    # what identifies a run, how it was asked for, what it found out
    "run_id", "started_at", "finished_at", "schema_version", "planned_launches", "command_line", "arguments",
    "fingerprint", "notes", "matrix_products",
}  # fmt: skip
CHANGED: dict[str, Any] = {
    "device_type": "cpu",
    "devices": (Device(index=0, name="NVIDIA A100"),),
    "packages": (NameValue(name="torch", value="2.15.0"),),
    "environment_variables": (),
    "git_dirty": True,
    "git_commit": "b" * 40,
    "memory_limit_bytes": 2**30,
}


def gpu(index: int, name: str = "NVIDIA H200") -> Device:
    return Device(index=index, name=name, uuid=f"GPU-{index}", memory_bytes=140 * 2**30, capability="9.0")


def with_fingerprint(run: Run) -> Run:
    facts = (run.device_type, run.devices, run.cpu_name, run.cpu_cores, run.host_memory_bytes, run.topology)
    return replace(run, fingerprint=fingerprint(*facts))


def named(base: Run, head: Run) -> list[str]:
    return [item.name for item in differences(base, head)]


def test_equal_environments_have_no_differences() -> None:
    assert differences(made_run(), made_run(run_id="other")) == ()
    assert why_not_comparable(made_run(), made_run(run_id="other")) is None


def kinds() -> list[str]:
    return [field.name for field in fields(Run) if field.name not in NOT_THE_ENVIRONMENT]


@pytest.mark.parametrize("field", kinds())
def test_every_column_that_describes_the_environment_can_differ(field: str) -> None:
    """A new column belongs to the differences, or to NOT_THE_ENVIRONMENT above."""
    base = made_run(git_commit="a" * 40)
    usual: Any = getattr(base, field)
    changed = CHANGED.get(field, (usual or 0) + 2**30 if isinstance(usual, int) else f"other {field}")
    assert differences(base, replace(base, **{field: changed})) != ()


def test_what_the_devices_are_comes_first_and_which_ones_last() -> None:
    base = made_run(devices=tuple(gpu(index) for index in range(4)), cpu_cores=64)
    fewer = tuple(replace(gpu(index, "NVIDIA H100"), uuid=f"GPU-x{index}", memory_bytes=80 * 2**30) for index in (0, 1))
    head = made_run(devices=fewer, cpu_cores=32, hostname="other")
    assert differences(base, head) == (
        Difference(name="devices", base="4 x NVIDIA H200", head="2 x NVIDIA H100", fingerprint=True),
        Difference(name="cores", base="64", head="32", fingerprint=True),
        Difference(name="device memory", base="140.0 GiB", head="80.0 GiB"),
        Difference(name="host", base="box", head="other"),
        Difference(name="device UUIDs", base="GPU-0, GPU-1, GPU-2, GPU-3", head="GPU-x0, GPU-x1"),
    )


def test_packages_and_variables_differ_one_by_one_torch_before_all() -> None:
    def items(**values: str) -> tuple[NameValue, ...]:
        return tuple(NameValue(name=name, value=value) for name, value in values.items())

    base = made_run(
        packages=items(numpy="1.0", torch="2.9"), environment_variables=items(NCCL_DEBUG="INFO", OMP_NUM_THREADS="4")
    )
    head = made_run(
        packages=items(rich="3", numpy="2.0", torch="2.10"), environment_variables=items(OMP_NUM_THREADS="8")
    )
    assert [(item.name, item.base, item.head) for item in differences(base, head)] == [
        ("torch", "2.9", "2.10"),
        ("NCCL_DEBUG", "INFO", None),
        ("OMP_NUM_THREADS", "4", "8"),
        ("numpy", "1.0", "2.0"),
        ("rich", None, "3"),
    ]


def test_commit_tells_uncommitted_changes() -> None:
    base, head = made_run(git_commit="a1", git_dirty=False), made_run(git_commit="a1", git_dirty=True)
    assert differences(base, head) == (Difference(name="commit", base="a1", head="a1 with uncommitted changes"),)


def test_what_the_fingerprint_leaves_out_refuses_nothing() -> None:
    base = with_fingerprint(made_run())
    # 300 MiB less memory is the same number of whole GiB, and the order of the devices is not in it.
    head = with_fingerprint(
        made_run(host_memory_bytes=128 * 2**30 - 300 * 2**20, driver_version="580", python_version="CPython 3.12.1")
    )
    assert why_not_comparable(base, head) is None
    assert named(base, head) == ["driver", "Python"]
    mixed = (gpu(0), gpu(1, "NVIDIA A100"))
    one, other = (with_fingerprint(made_run(devices=devices)) for devices in (mixed, mixed[::-1]))
    assert why_not_comparable(one, other) is None and "devices" not in named(one, other)


def test_different_machines_are_not_comparable_with_every_fact_of_the_fingerprint() -> None:
    base = with_fingerprint(
        made_run(devices=tuple(gpu(i, "NVIDIA A100") for i in range(4)), cpu_cores=64, topology="all NV12")
    )
    head = with_fingerprint(made_run(devices=(gpu(0, "NVIDIA H100"), gpu(1, "NVIDIA H100")), cpu_cores=32))
    assert why_not_comparable(base, head) == (
        "4 x NVIDIA A100 against 2 x NVIDIA H100; links all NV12 against unknown; cores 64 against 32"
    )


def test_equal_devices_that_are_linked_differently_are_not_comparable() -> None:
    base, head = (with_fingerprint(made_run(topology=text)) for text in ("all NV18", "all SYS"))
    assert why_not_comparable(base, head) == "links all NV18 against all SYS"


def test_fingerprints_that_differ_without_a_fact_say_who_made_them() -> None:
    base, head = made_run(fingerprint="aa"), made_run(fingerprint="bb", dpbench_version="0.2")
    assert why_not_comparable(base, head) == (
        "the fingerprints aa and bb differ (made by dpbench 0.1 and 0.2), though no fact in them does"
    )


def test_run_without_a_readable_table_is_not_comparable(tmp_path: Path) -> None:
    folder = cpu_run(tmp_path)
    (folder / "run.parquet").unlink()
    lost = read_run(folder).run
    reason = f"the environment of {lost.run_id} is unknown: no readable run.parquet"
    assert why_not_comparable(lost, made_run()) == why_not_comparable(made_run(), lost) == reason
    assert "devices" in named(lost, made_run())


def test_software_that_the_pace_is_taken_with() -> None:
    base = made_run()
    assert other_software(base, base) is None
    newer = made_run(packages=(NameValue(name="torch", value="2.15.0"),))
    assert other_software(base, newer) == "torch is 2.15.0, and was 2.14.1"
    assert other_software(base, made_run(driver_version="999")) == "CUDA or the driver is another"
    assert other_software(base, made_run(environment_variables=())) == "environment variables differ"
    assert other_software(base, made_run(dpbench_version="0.2")) == "dpbench is 0.2, and was 0.1"
    kept = made_run(host_allocator="glibc 2.36, freed memory kept")
    assert other_software(base, kept) == (
        "memory of the host comes from glibc 2.36, freed memory kept, and came from what was not recorded"
    )
    assert named(base, kept) == ["host allocator"]
