"""The stand-in itself, through the real binding: what a script says is what nvidia-ml-py reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.nvml_stub import MIB, StubGpu, calls, run_python, stub_environment

GPUS = (
    StubGpu(
        uuid="GPU-a",
        total_bytes=100 * MIB,
        reserved_bytes=5 * MIB,
        used_bytes=20 * MIB,
        answers={
            "nvmlDeviceGetPowerUsage": "1 then error UNKNOWN then 3",
            "nvmlDeviceGetTotalEnergyConsumption": "7+10/call",
            "nvmlDeviceGetComputeRunningProcesses_v3": "12:34 56:?",
            "nvmlDeviceGetFieldValues/138": "77",
            "nvmlDeviceGetFieldValues/139/2": "1 78",
            "nvmlDeviceGetSamples/1": "5 6",
            "nvmlDeviceGetTopologyCommonAncestor/1": "20",
        },
    ),
    StubGpu(uuid="GPU-b", lost_after=4, mig=(StubGpu(uuid="MIG-b0"), StubGpu(uuid="MIG-b1"))),
)
READ = """
import json, os
import pynvml as n
n.nvmlInit()
a, b = (n.nvmlDeviceGetHandleByIndex(index) for index in range(n.nvmlDeviceGetCount()))

def attempt(function, *arguments):
    try:
        return function(*arguments)
    except n.NVMLError as error:
        return f"{type(error).__name__} {error.value}"

memory, both = n.nvmlDeviceGetMemoryInfo(a), n.nvmlDeviceGetMemoryInfo(a, n.nvmlMemory_v2)
fields = n.nvmlDeviceGetFieldValues(a, [(138, 4), (139, 2), (139, 3)])
part = n.nvmlDeviceGetHandleByUUID("MIG-b0")
samples = [n.nvmlGpmSampleGet(a, n.nvmlGpmSampleAlloc()) for _ in range(2)]
query = n.c_nvmlGpmMetricsGet_t(version=n.NVML_GPM_METRICS_GET_VERSION, numMetrics=2)
query.sample1, query.sample2 = samples
query.metrics[0].metricId, query.metrics[1].metricId = n.NVML_GPM_METRIC_SM_UTIL, 99
n.nvmlGpmMetricsGet(query)
read = {
    "power": [attempt(n.nvmlDeviceGetPowerUsage, a) for _ in range(4)],
    "energy": [n.nvmlDeviceGetTotalEnergyConsumption(a) for _ in range(3)],
    "memory": [memory.total, memory.free, memory.used],
    "memory v2": [both.total, both.reserved, both.free, both.used],
    "processes": [[item.pid, item.usedGpuMemory] for item in n.nvmlDeviceGetComputeRunningProcesses(a)],
    "nobody": n.nvmlDeviceGetGraphicsRunningProcesses(a),
    "fields": [[field.nvmlReturn, field.value.ullVal if field.nvmlReturn == 0 else None] for field in fields],
    "samples": [sample.sampleValue.uiVal for sample in n.nvmlDeviceGetSamples(a, 1, 0)[1]],
    "gpm": [query.metrics[0].value, query.metrics[1].nvmlReturn],
    "clocks": [n.nvmlDeviceGetClockInfo(a, kind) for kind in (n.NVML_CLOCK_SM, n.NVML_CLOCK_MEM)],
    "way": n.nvmlDeviceGetTopologyCommonAncestor(a, b),
    "bus": n.nvmlDeviceGetPciInfo(a).busId,
    "driver": n.nvmlSystemGetDriverVersion(),
    "not scripted": attempt(n.nvmlDeviceGetSerial, a),
    "missing": attempt(n.nvmlDeviceGetEccMode, a),
    "unknown": attempt(n.nvmlDeviceGetHandleByUUID, "GPU-c"),
    "part": n.nvmlDeviceGetUUID(n.nvmlDeviceGetMigDeviceHandleByIndex(b, 1)),
    "parent": n.nvmlDeviceGetIndex(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(part)),
    "lost": [attempt(n.nvmlDeviceGetPowerUsage, b) for _ in range(3)],
}
if os.fork() == 0:
    os._exit(0 if attempt(n.nvmlDeviceGetPowerUsage, a) == "NVMLError_Uninitialized 1" else 9)
read["child"] = os.waitstatus_to_exitcode(os.wait()[1])
n.nvmlShutdown()
read["closed"] = attempt(n.nvmlDeviceGetPowerUsage, a)
print(json.dumps(read))
"""


def test_binding_reads_what_the_script_says(tmp_path: Path) -> None:
    environment = stub_environment(tmp_path, GPUS, missing=["nvmlDeviceGetEccMode"])
    read: dict[str, Any] = json.loads(run_python(READ, environment))
    assert read == {
        "power": [1, "NVMLError_Unknown 999", 3, 3],
        "energy": [7, 17, 27],
        "memory": [100 * MIB, 75 * MIB, 25 * MIB],
        "memory v2": [100 * MIB, 5 * MIB, 75 * MIB, 20 * MIB],
        "processes": [[12, 34], [56, None]],
        "nobody": [],
        "fields": [[0, 77], [0, 78], [3, None]],
        "samples": [5, 6],
        "gpm": [40.0, 3],
        "clocks": [1700, 2600],
        "way": 20,
        "bus": "00000000:10:00.0",
        "driver": "580.65.06",
        "not scripted": "NVMLError_NotSupported 3",
        "missing": "NVMLError_FunctionNotFound 13",
        "unknown": "NVMLError_NotFound 6",
        "part": "MIG-b1",
        "parent": 1,
        "lost": [300000, *["NVMLError_GpuIsLost 15"] * 2],
        "child": 0,
        "closed": "NVMLError_Uninitialized 1",
    }
    power = [call[3] for call in calls(tmp_path) if call[1:3] == ("0", "nvmlDeviceGetPowerUsage")]
    assert power == [0, 999, 0, 0, *(1, 1)]  # at last in the child, and after the end


@pytest.mark.parametrize(
    ("answer", "said"), [("many", "not a number"), ("5+1/h", "grows by"), ("error HUGE", "no such error")]
)
def test_script_that_makes_no_sense_ends_the_process_loudly(tmp_path: Path, answer: str, said: str) -> None:
    environment = stub_environment(tmp_path, [StubGpu(uuid="GPU-a", answers={"nvmlDeviceGetPowerUsage": answer})])
    code = "import pynvml as n; n.nvmlInit(); n.nvmlDeviceGetPowerUsage(n.nvmlDeviceGetHandleByIndex(0))"
    with pytest.raises(AssertionError, match=said):
        run_python(code, environment)
