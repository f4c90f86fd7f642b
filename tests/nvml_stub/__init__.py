"""A stand-in for NVIDIA's `libnvidia-ml.so.1`, so that the real nvidia-ml-py can be tested without a GPU.

`stub_environment(folder, gpus)` compiles `stub.c` with gcc (once per process; skips the test where
there is none), writes a script into `folder` and returns the environment in which a fresh process
finds the stub. The loader reads it at process start, so every use is in a process of its own:

    environment = stub_environment(tmp_path, [StubGpu(uuid="GPU-a"), StubGpu(uuid="GPU-b")])
    printed = run_python("import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())", environment)

The script has one answer a line, `WHO FUNCTION ANSWER`, and may be replaced while a process runs
(`write_script`):

* WHO is `system`, a GPU's NVML index (`0`), or a MIG device of it (`0.1`). A device exists when it
  has a line for nvmlDeviceGetUUID; GPUs are numbered without a gap.
* FUNCTION is the symbol in the library, e.g. nvmlDeviceGetMemoryInfo_v2 (the binding's own function
  may have a shorter name). `/` adds an argument: nvmlDeviceGetClockInfo/1 is the clock of type 1,
  nvmlDeviceGetFieldValues/138/2 a field of scope 2, nvmlGpmMetricsGet/20 a metric,
  nvmlDeviceGetTopologyCommonAncestor/1 the way to device 1. Without the argument: for all.
* ANSWER is what the call gives, in the library's units and order, e.g. `60 20` for
  nvmlDeviceGetUtilizationRates. Numbers may grow, `5+10/s` or `5+10/call` (seconds since the script was written);
  -1 is the largest number of the type. Texts may be bytes: `hex:4eff`. Processes are `PID:BYTES`,
  `PID:?` where the memory is not known, or `none`. A field value is `VALUE` or `TYPE VALUE`.
  `error 3` or `error NOT_SUPPORTED` fails; `crash` aborts the process; `sleep 0.1 ...` blocks first.
  `A then B then C` answers A, then B, and C from then on, counted per process.
* `0 lost_after 25`: from the 26th query on, opening it included, device 0 is lost, in every process by its own count.

What is not scripted is not supported (handles, count and start are answered without a line). Symbols
named in `missing` do not exist, as in a driver that is too old. Every call is added to `nvml.log`
in `folder` as `PID WHO FUNCTION CODE` (see `calls`). After a fork the library must be started anew.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = Path(__file__).with_name("stub.c")
LIBRARY = "libnvidia-ml.so.1"
SCRIPT, LOG = "nvml.script", "nvml.log"
DRIVER = "580.65.06"
MIB, GIB = 1 << 20, 1 << 30
PROCESS_KINDS = ("Compute", "Graphics", "MPSCompute")


@dataclass(frozen=True, slots=True, kw_only=True)
class StubGpu:
    """A GPU, or a MIG device of one. `answers` replaces single answers by symbol; None takes one away."""

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3"
    total_bytes: int = 80 * GIB
    reserved_bytes: int = 512 * MIB
    used_bytes: int = 2 * GIB
    answers: Mapping[str, str | None] = field(default_factory=dict)
    mig: tuple[StubGpu, ...] = ()
    lost_after: int | None = None

    def lines(self, who: str) -> list[str]:
        """The part of the script about this device and its MIG devices."""
        answers = self._usual(who) | dict(self.answers)
        if self.lost_after is not None:
            answers["lost_after"] = str(self.lost_after)
        own = [f"{who} {function} {answer}" for function, answer in answers.items() if answer is not None]
        return own + [line for index, part in enumerate(self.mig) for line in part.lines(f"{who}.{index}")]

    def _usual(self, who: str) -> dict[str, str]:
        free = self.total_bytes - self.reserved_bytes - self.used_bytes
        index = int(who.split(".")[0])
        processes = {
            f"nvmlDeviceGet{kind}RunningProcesses_{version}": "none"
            for kind in PROCESS_KINDS
            for version in ("v2", "v3")
        }
        return (
            processes
            | {
                "nvmlDeviceGetUUID": self.uuid,
                "nvmlDeviceGetName": self.name,
                "nvmlDeviceGetMinorNumber": str(index),
                "nvmlDeviceGetPciInfo_v3": f"00000000:{16 + index:02X}:00.0",
                "nvmlDeviceGetMemoryInfo": f"{self.total_bytes} {free} {self.used_bytes + self.reserved_bytes}",
                "nvmlDeviceGetMemoryInfo_v2": f"{self.total_bytes} {self.reserved_bytes} {free} {self.used_bytes}",
                "nvmlDeviceGetMigMode": "1 1" if self.mig else "0 0",
                "nvmlDeviceGetMaxMigDeviceCount": "7",
            }
            | USUAL
        )


USUAL = {
    "nvmlDeviceGetUtilizationRates": "60 20",
    "nvmlDeviceGetPowerUsage": "300000",
    "nvmlDeviceGetTotalEnergyConsumption": "5000000+300000/s",
    "nvmlDeviceGetTemperature/0": "55",
    "nvmlDeviceGetTemperatureV/0": "55",
    "nvmlDeviceGetClockInfo/0": "1700",
    "nvmlDeviceGetClockInfo/1": "1700",
    "nvmlDeviceGetClockInfo/2": "2600",
    "nvmlDeviceGetMaxClockInfo/1": "1980",
    "nvmlDeviceGetMaxClockInfo/2": "2619",
    "nvmlDeviceGetCurrentClocksThrottleReasons": "0",
    "nvmlDeviceGetCurrentClocksEventReasons": "0",
    "nvmlDeviceGetPcieThroughput/0": "1000",
    "nvmlDeviceGetPcieThroughput/1": "2000",
    "nvmlDeviceGetCurrPcieLinkGeneration": "5",
    "nvmlDeviceGetMaxPcieLinkGeneration": "5",
    "nvmlDeviceGetCurrPcieLinkWidth": "16",
    "nvmlDeviceGetMaxPcieLinkWidth": "16",
    "nvmlDeviceGetEnforcedPowerLimit": "700000",
    "nvmlDeviceGetPowerManagementLimit": "700000",
    "nvmlDeviceGetPowerManagementDefaultLimit": "700000",
    "nvmlDeviceGetPowerManagementLimitConstraints": "200000 700000",
    "nvmlDeviceGetEccMode": "1 1",
    "nvmlDeviceGetTotalEccErrors": "0",
    "nvmlDeviceGetRemappedRows": "0 0 0 0",
    "nvmlDeviceGetPersistenceMode": "1",
    "nvmlDeviceGetComputeMode": "0",
    "nvmlDeviceGetDisplayActive": "0",
    "nvmlDeviceGetDisplayMode": "0",
    "nvmlDeviceGetPerformanceState": "0",
    "nvmlDeviceGetCudaComputeCapability": "9 0",
    "nvmlDeviceGetArchitecture": "9",
    "nvmlDeviceGetNumaNodeId": "0",
    "nvmlDeviceGetTopologyCommonAncestor": "50",
    "nvmlDeviceGetP2PStatus": "0",
    "nvmlDeviceGetNvLinkState": "0",
    "nvmlGpmQueryDeviceSupport": "1",
    "nvmlGpmSampleGet": "",
    "nvmlGpmMigSampleGet": "",
    "nvmlGpmMetricsGet/2": "40.0",
    "nvmlGpmMetricsGet/20": "3.0",
    "nvmlGpmMetricsGet/21": "4.0",
    "nvmlGpmMetricsGet/60": "5.0",
    "nvmlGpmMetricsGet/61": "6.0",
}

USUAL_SYSTEM = {
    "nvmlSystemGetDriverVersion": DRIVER,
    "nvmlSystemGetNVMLVersion": f"13.{DRIVER}",
    "nvmlSystemGetCudaDriverVersion": "13000",
    "nvmlSystemGetCudaDriverVersion_v2": "13000",
}


def stub_environment(
    folder: Path,
    gpus: Iterable[StubGpu] = (),
    *,
    system: Mapping[str, str | None] | None = None,
    missing: Sequence[str] = (),
) -> dict[str, str]:
    """The environment for processes that shall find the stub; skips the test where gcc is missing.

    `gpus` in NVML's order; `system` replaces answers that belong to no device, e.g.
    `{"nvmlInitWithFlags": "error LIB_RM_VERSION_MISMATCH"}`; `missing` names symbols the library lacks.
    """
    write_script(folder, gpus, system=system)
    return _environment(_library(tuple(sorted(missing))), folder)


def environment_without_library(folder: Path) -> dict[str, str]:
    """The environment of a machine where no NVML library can be loaded, whatever is installed here."""
    folder.joinpath(LIBRARY).write_text("not a library")
    return _environment(folder, folder)


def _environment(library: Path, folder: Path) -> dict[str, str]:
    path = os.pathsep.join(filter(None, (str(library), os.environ.get("LD_LIBRARY_PATH"))))
    stub = {"NVML_STUB_SCRIPT": str(folder / SCRIPT), "NVML_STUB_LOG": str(folder / LOG)}
    return {**os.environ, "LD_LIBRARY_PATH": path, "PYTHONPATH": str(ROOT), **stub}


def write_script(folder: Path, gpus: Iterable[StubGpu] = (), *, system: Mapping[str, str | None] | None = None) -> None:
    """Writes or replaces the script at once; growing numbers go on from when it was first written."""
    answers = USUAL_SYSTEM | dict(system or {})
    lines = [f"system {function} {answer}" for function, answer in answers.items() if answer is not None]
    lines += [line for index, gpu in enumerate(gpus) for line in gpu.lines(str(index))]
    path, new = folder / SCRIPT, folder / f"{SCRIPT}.new"
    new.write_text("\n".join(lines) + "\n")
    if path.exists():
        os.utime(new, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    new.replace(path)


def calls(folder: Path) -> list[tuple[int, str, str, int]]:
    """Every call so far: process, device or `system`, symbol with its arguments, NVML's code."""
    log = folder / LOG
    lines = log.read_text().splitlines() if log.exists() else []
    return [(int(pid), who, function, int(code)) for pid, who, function, code in map(str.split, lines)]


def run_python(code: str, environment: Mapping[str, str], *, timeout: float = 60) -> str:
    """What a fresh Python process prints that runs `code` from the repository's root; it must end well."""
    run = subprocess.run(
        [sys.executable, "-c", code], env=dict(environment), cwd=ROOT, capture_output=True, text=True, timeout=timeout
    )
    assert run.returncode == 0, f"exit status {run.returncode}\n{run.stdout}\n{run.stderr}"
    return run.stdout


@functools.cache
def _build_folder() -> tempfile.TemporaryDirectory[str]:
    """Removed when this process ends."""
    return tempfile.TemporaryDirectory(prefix="nvml-stub-")


@functools.cache
def _library(missing: tuple[str, ...]) -> Path:
    """The folder of a library without the symbols `missing`."""
    compiler = which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed: the stub NVML library cannot be compiled")
    folder = Path(tempfile.mkdtemp(dir=_build_folder().name))
    hidden = f"local: {'; '.join(missing)};" if missing else ""
    (folder / "symbols.map").write_text(f"{{ global: nvml*; {hidden} }};\n")
    options = ["-std=gnu11", "-shared", "-fPIC", f"-Wl,--version-script={folder / 'symbols.map'}"]
    command = [compiler, *options, "-o", str(folder / LIBRARY), str(SOURCE), "-lpthread"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return folder
