"""The devices of a run: CUDA's count and order, and NVML's figures of the same devices, found by UUID."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.measuring.machine import describe_cuda
from tests.nvml_stub import GIB, LOG, MIB, ROOT, SCRIPT, StubGpu, calls, stub_environment
from tests.troubles.support import cuda_device

UUIDS = [f"{number}1111111-2222-3333-4444-555555555555" for number in range(4)]
PART = "c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f"
GPUS = tuple(
    StubGpu(uuid=f"GPU-{uuid}", used_bytes=number * MIB, reserved_bytes=(number + 10) * MIB)
    for number, uuid in enumerate(UUIDS)
)
WHOLE = StubGpu(uuid="GPU-whole", used_bytes=9 * GIB, mig=(StubGpu(uuid=f"MIG-{PART}", used_bytes=12 * MIB),))
OLD = StubGpu(
    uuid=f"GPU-{UUIDS[0]}", used_bytes=2 * GIB, reserved_bytes=GIB, answers={"nvmlDeviceGetMemoryInfo_v2": None}
)
LOST = StubGpu(uuid=f"GPU-{UUIDS[0]}", lost_after=0)
ABSURD = StubGpu(
    uuid=f"GPU-{UUIDS[0]}",
    answers={"nvmlDeviceGetMemoryInfo_v2": "-1 -1 -1 -1", "nvmlDeviceGetMemoryInfo": "-1 -1 -1"},
)
ODD = StubGpu(uuid=f"GPU-{UUIDS[0]}", name="hex:4eff41")
# Every form that the runtime takes; what it makes of one is CUDA's own affair.
VISIBLE = ("0", " 0 , 1", f"GPU-{UUIDS[0]}", "GPU-0111", f"MIG-{PART}", "MIG-GPU-01111111/1/0", "0,none", "0,7", "abc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What NVML and CUDA see. `cuda` has the UUIDs as CUDA tells them."""

    gpus: tuple[StubGpu, ...] = GPUS
    cuda: Sequence[str | None] = ()
    visible: str | None = None
    requested: str = "auto"
    system: Mapping[str, str | None] | None = None


SITUATIONS = {
    "reversed": Situation(cuda=(UUIDS[3], UUIDS[2]), visible="3,2"),
    "prefixed": Situation(cuda=(f"GPU-{UUIDS[1]}",)),
    "part": Situation(gpus=(*GPUS, WHOLE), cuda=(PART,), visible=f"MIG-{PART}"),
    "stranger": Situation(cuda=("ffffffff", UUIDS[1])),
    "unnamed": Situation(cuda=(None, UUIDS[1])),
    "old": Situation(gpus=(OLD,), cuda=(UUIDS[0],)),
    "lost": Situation(gpus=(LOST, *GPUS[1:]), cuda=(UUIDS[0], UUIDS[1])),
    "absurd": Situation(gpus=(ABSURD,), cuda=(UUIDS[0],)),
    "odd": Situation(gpus=(ODD,)),
    "mismatch": Situation(cuda=UUIDS[:2], system={"nvmlInitWithFlags": "error LIB_RM_VERSION_MISMATCH"}),
    "uncountable": Situation(cuda=UUIDS[:2], system={"nvmlDeviceGetCount_v2": "error NO_PERMISSION"}),
    "no driver": Situation(gpus=(), system={"nvmlInitWithFlags": "error DRIVER_NOT_LOADED"}),
} | {f"visible {text}": Situation(cuda=UUIDS[:1], visible=text) for text in VISIBLE}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The machine, or the refusal, in each situation: all from one process, since importing torch takes long."""
    given: dict[str, dict[str, Any]] = {}
    environment: dict[str, str] = {}
    for name, situation in SITUATIONS.items():
        folder = tmp_path_factory.mktemp("situation")
        environment = stub_environment(folder, situation.gpus, system=situation.system)
        devices = [asdict(cuda_device(index, uuid)) for index, uuid in enumerate(situation.cuda)]
        files = {"script": str(folder / SCRIPT), "log": str(folder / LOG)}
        given[name] = files | {
            "devices": devices, "visible": situation.visible, "requested": situation.requested,
        }  # fmt: skip
    run = subprocess.run(
        [sys.executable, "-m", "tests.troubles.finding"],
        input=json.dumps(given), env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    answers = json.loads(run.stdout)
    return {name: answers[name] | {"calls": calls(Path(given[name]["log"]).parent)} for name in given}


def column(machine: dict[str, Any], name: str) -> list[Any]:
    return [device[name] for device in machine["devices"]]


def test_devices_are_cudas_in_its_order_under_the_uuid_of_nvml(found: dict[str, Any]) -> None:
    machine = found["reversed"]
    assert column(machine, "uuid") == [f"GPU-{UUIDS[3]}", f"GPU-{UUIDS[2]}"]
    assert column(machine, "index") == [0, 1]
    assert machine["device_type"] == "cuda" and machine["notes"] == []


def test_idle_memory_and_what_the_driver_keeps_are_two_figures_of_the_same_device(found: dict[str, Any]) -> None:
    machine = found["reversed"]
    assert column(machine, "idle_memory_used_bytes") == [3 * MIB, 2 * MIB]
    assert column(machine, "reserved_memory_bytes") == [13 * MIB, 12 * MIB]


def test_uuid_that_has_its_prefix_already_keeps_it(found: dict[str, Any]) -> None:
    assert column(found["prefixed"], "uuid") == [f"GPU-{UUIDS[1]}"]
    assert column(found["prefixed"], "idle_memory_used_bytes") == [1 * MIB]


def test_part_of_a_gpu_is_itself_and_not_its_gpu(found: dict[str, Any]) -> None:
    assert column(found["part"], "uuid") == [f"MIG-{PART}"]
    assert column(found["part"], "idle_memory_used_bytes") == [12 * MIB]


@pytest.mark.parametrize("text", VISIBLE)
def test_whatever_is_made_visible_the_runtime_counts(found: dict[str, Any], text: str) -> None:
    assert column(found[f"visible {text}"], "uuid") == [f"GPU-{UUIDS[0]}"]


@pytest.mark.parametrize("name", ["stranger", "unnamed"])
def test_device_that_nvml_does_not_list_is_noted_and_keeps_its_place(found: dict[str, Any], name: str) -> None:
    machine = found[name]
    assert column(machine, "idle_memory_used_bytes") == [None, 1 * MIB]
    (note,) = machine["notes"]
    assert "no gauges of GPU 0" in note


def test_old_driver_has_one_figure_and_a_note_of_what_is_in_it(found: dict[str, Any]) -> None:
    machine = found["old"]
    assert column(machine, "reserved_memory_bytes") == [None]
    assert column(machine, "idle_memory_used_bytes") in ([3 * GIB], [None])
    assert any("older query" in note for note in machine["notes"])


def test_lost_device_hides_no_other(found: dict[str, Any]) -> None:
    assert column(found["lost"], "idle_memory_used_bytes") == [None, 1 * MIB]
    assert any("GPU 0" in note for note in found["lost"]["notes"])


def test_memory_that_cannot_be_is_not_recorded(found: dict[str, Any]) -> None:
    # 2**64 - 1 bytes do not fit the tables: the run would end where its row is written.
    assert column(found["absurd"], "idle_memory_used_bytes") == [None]
    assert column(found["absurd"], "reserved_memory_bytes") == [None]


def test_name_of_odd_bytes_stands_in_the_refusal(found: dict[str, Any]) -> None:
    assert "1 x N\ufffdA" in found["odd"]["refused"]


@pytest.mark.parametrize(("name", "why"), [("mismatch", "version mismatch"), ("uncountable", "")])
def test_nvml_that_fails_leaves_the_devices_and_one_line_that_says_why(
    found: dict[str, Any], name: str, why: str
) -> None:
    machine = found[name]
    assert [uuid.removeprefix("GPU-") for uuid in column(machine, "uuid")] == UUIDS[:2]
    assert column(machine, "idle_memory_used_bytes") == [None, None]
    assert machine["notes"] and all("no gauges" in note and "\n" not in note for note in machine["notes"])
    assert any(why in note for note in machine["notes"])


def test_no_driver_and_no_gpu_is_a_cpu_machine(found: dict[str, Any]) -> None:
    assert found["no driver"]["device_type"] == "cpu"


def test_nvml_is_closed_again(found: dict[str, Any]) -> None:
    # Workers are forked later on, and NVML's state does not survive that.
    for name, machine in found.items():
        opened = [call for call in machine["calls"] if call[2:] == ("nvmlInitWithFlags", 0)]
        closed = [call for call in machine["calls"] if call[2:] == ("nvmlShutdown", 0)]
        assert len(opened) == len(closed), name


def test_runtime_tells_uuids_as_it_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    # A part of a GPU comes like a GPU: only NVML knows which it is.
    properties = [
        SimpleNamespace(name="H100", uuid=uuid, total_memory=GIB, major=9, minor=0) for uuid in (UUIDS[3], PART)
    ]
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties[index])
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    told: list[dict[str, Any]] = []
    channel: Any = SimpleNamespace(phase=lambda _: None, reply=told.append)
    describe_cuda(None, channel)
    (reply,) = told
    assert [device["uuid"] for device in reply["devices"]] == [UUIDS[3], PART]
