"""Machines where NVML is absent, broken or too old: everything else works, and one line says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.schema import Device
from bench.watching.watcher import Watched, Watcher
from tests.nvml_stub import StubGpu, environment_without_library, run_python, stub_environment
from tests.troubles.conftest import StartWatcher
from tests.troubles.support import (
    GPU_GAUGES,
    asked,
    assert_absent,
    assert_others_read,
    devices_of,
    reasons,
    values,
    watched,
)

GPUS = [StubGpu(uuid="GPU-0"), StubGpu(uuid="GPU-1")]
OPEN = """
from bench.nvml import NvmlUnavailable, nvml_session
try:
    with nvml_session() as nvml:
        print("opened", nvml.ask("nvmlDeviceGetCount").value)
except NvmlUnavailable as error:
    print(error)
"""


def assert_nothing_but_the_reason(found: Watched, why: str) -> None:
    """Every gauge of both GPUs is null with the reason, in one line each; the host's gauges go on."""
    for position in (0, 1):
        for gauge in GPU_GAUGES:
            assert_absent(found, position, gauge, why)
        assert all("\n" not in reason for reason in reasons(found.moments, position).values())
        assert len([problem for problem in found.problems if problem.startswith(f"device {position}:")]) <= 1
    assert values(found, 0, "host_rss_bytes")


def test_no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment = environment_without_library(tmp_path)
    said = run_python(OPEN, environment)
    assert said.count("\n") == 1 and "not available" in said and "Not Found" in said
    monkeypatch.setenv("LD_LIBRARY_PATH", environment["LD_LIBRARY_PATH"])
    watcher = Watcher(devices_of(GPUS))
    try:
        assert_nothing_but_the_reason(watched(watcher, (0, 1)), "not available")
    finally:
        watcher.close()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("error LIB_RM_VERSION_MISMATCH", "version mismatch"),
        ("error DRIVER_NOT_LOADED", "Driver Not Loaded"),
        ("error NO_PERMISSION", "Permissions"),
        ("error UNKNOWN", "Unknown"),
    ],
)
def test_library_that_does_not_start(start_watcher: StartWatcher, tmp_path: Path, answer: str, why: str) -> None:
    watcher = start_watcher(GPUS, system={"nvmlInitWithFlags": answer})
    assert_nothing_but_the_reason(watched(watcher, (0, 1)), why)
    said = run_python(OPEN, stub_environment(tmp_path, GPUS, system={"nvmlInitWithFlags": answer}))
    assert said.count("\n") == 1 and why in said


def test_library_from_before_the_binding(start_watcher: StartWatcher) -> None:
    watcher = start_watcher(GPUS, missing=["nvmlInitWithFlags"])
    assert_nothing_but_the_reason(watched(watcher, (0, 1)), "not available")


def test_binding_that_is_not_installed(
    start_watcher: StartWatcher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tmp_path.joinpath("pynvml.py").write_text("raise ModuleNotFoundError(\"No module named 'pynvml'\")\n")
    watcher = start_watcher(GPUS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = watched(watcher, (0, 1))
    assert_nothing_but_the_reason(found, "install nvidia-ml-py")


def test_binding_that_is_older_than_the_queries(start_watcher: StartWatcher, tmp_path: Path) -> None:
    code = """
import pynvml
for name in ("nvmlMemory_v2", "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetCurrentClocksEventReasons"):
    delattr(pynvml, name)
import os, sys, time
from bench.watching.watcher import Watcher
from bench.nvml import nvml_session
with nvml_session() as nvml:
    handle = nvml.handle("GPU-0").value
    print(nvml.ask("nvmlDeviceGetTotalEnergyConsumption", handle))
    print(nvml.ask("nvmlDeviceGetPowerUsage", handle))
"""
    energy, power = run_python(code, stub_environment(tmp_path, GPUS)).splitlines()
    assert "value=None" in energy and "nvidia-ml-py" in energy
    assert "value=300000" in power


@pytest.mark.parametrize(
    ("gauges", "missing"),
    [
        (("utilization_percent",), "nvmlDeviceGetUtilizationRates"),
        (("energy_joules",), "nvmlDeviceGetTotalEnergyConsumption"),
        (("power_watts",), "nvmlDeviceGetPowerUsage"),
        (("sm_clock_hertz", "memory_clock_hertz"), "nvmlDeviceGetClockInfo"),
        (("sm_activity_percent",), "nvmlGpmQueryDeviceSupport"),
        (("sm_activity_percent",), "nvmlGpmSampleAlloc"),
        (("sm_activity_percent",), "nvmlGpmMetricsGet"),
        (("nvlink_sent_bytes_per_second", "nvlink_received_bytes_per_second"), "nvmlDeviceGetFieldValues"),
    ],
)
def test_symbol_that_an_old_driver_lacks_disables_its_gauge_only(
    start_watcher: StartWatcher, tmp_path: Path, gauges: tuple[str, ...], missing: str
) -> None:
    no_gpm = {"nvmlGpmQueryDeviceSupport": "0"} if missing == "nvmlDeviceGetFieldValues" else {}
    watcher = start_watcher([StubGpu(uuid="GPU-0", answers=no_gpm)], missing=[missing])
    # What GPM tells compares two samples of the card.
    samples = 2 if missing == "nvmlGpmMetricsGet" else 0
    found = watched(watcher, (0,), until=lambda: asked(tmp_path, "nvmlGpmSampleGet") >= samples)
    for gauge in gauges:
        assert_absent(found, 0, gauge, "not known to this driver")
    assert_others_read(found, 0, *gauges)


def test_cpu_is_watched_without_a_word_about_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", environment_without_library(tmp_path)["LD_LIBRARY_PATH"])
    watcher = Watcher([Device(index=0, name="a processor")])
    try:
        found = watched(watcher, (0,))
    finally:
        watcher.close()
    assert values(found, 0, "host_rss_bytes") and found.problems == ()
    assert all(getattr(moment, gauge) is None for moment in found.moments for gauge in GPU_GAUGES)


def test_names_of_odd_bytes_are_read(tmp_path: Path) -> None:
    code = """
from bench.nvml import nvml_session
with nvml_session() as nvml:
    for handle in nvml.handles():
        print(ascii(nvml.ask("nvmlDeviceGetName", handle.value).value))
"""
    names = ["hex:4eff41", "hex:c3a9", ""]  # N, a byte that is no UTF-8, A; an accented e; nothing
    gpus = [StubGpu(uuid=f"GPU-{index}", name=name) for index, name in enumerate(names)]
    told = run_python(code, stub_environment(tmp_path, gpus)).splitlines()
    assert told == [r"'N\ufffdA'", r"'\xe9'", "''"]
