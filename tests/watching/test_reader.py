"""Reading a position: what is read when, what a failure does, what is measured. No time is asserted."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from bench.nvml import Nvml, NvmlUnavailable
from bench.watching.reader import GPU_COLUMNS, PROCESS_COLUMNS, Position, Record, Target, readers_of
from tests.watching.made_up import LOST, UNKNOWN, MadeUp, error

HANDLE = {"nvmlDeviceGetHandleByUUID": "handle"}
POWER, ENERGY = "nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEnergyConsumption"


def position(**changes: Any) -> Position:
    usual = {"gpu": True, "uuid": "GPU-a", "gpu_note": None, "pid": os.getpid(), "pid_note": None}
    return Position(**(usual | changes))


def read_through(made_up: MadeUp | Callable[[], Nvml], where: Position, *orders: str) -> Record:
    """The record after the first reading and those that the orders make."""
    nvml = (lambda: made_up.nvml) if isinstance(made_up, MadeUp) else made_up
    target = Target(where, [os.getpid()], nvml)
    (reader,) = readers_of([target])
    for order in (*orders, "stop"):
        reader.order(order)
    reader.start()
    reader.join(30)
    assert not reader.is_alive()
    return target.record


def test_gpus_are_read_apart_and_processes_together() -> None:
    targets = [Target(position(gpu=gpu), [], lambda: MadeUp().nvml) for gpu in (True, False, True, False)]
    assert [list(reader.targets) for reader in readers_of(targets)] == [
        [targets[0]], [targets[2]], [targets[1], targets[3]]
    ]  # fmt: skip


def told(record: Record, column: str) -> list[Any]:
    return [values[column] for _, _, values, _ in record.readings if column in values]


def test_everything_is_read_at_the_start_and_at_both_marks_and_only_between_them_it_is_measured() -> None:
    energy = iter([1_000, 2_000, 3_000])
    record = read_through(MadeUp(HANDLE | {ENERGY: lambda handle: next(energy)}), position(), "begin", "finish")
    assert [measured for _, measured, _, _ in record.readings] == [False, True, True]
    assert told(record, "energy_joules") == [1.0, 2.0, 3.0]  # mJ
    times = [at for at, _, _, _ in record.readings]
    assert times == sorted(times)
    assert record.problems(0) == []


def test_what_follows_the_finish_is_not_measured() -> None:
    record = read_through(MadeUp(), position(gpu=False), "begin", "finish", "finish")
    assert [measured for _, measured, _, _ in record.readings] == [False, True, True, False]


def test_a_gauge_that_is_not_supported_is_asked_once_and_named() -> None:
    made_up = MadeUp(HANDLE | {ENERGY: 5_000})
    record = read_through(made_up, position(), "begin", "finish")
    assert made_up.calls[POWER] == 1 and made_up.calls[ENERGY] == 3
    assert record.unavailable["power_watts"] == "not supported by this device"
    assert record.problems(0) == []  # the rows say it; nothing went wrong


def test_the_next_choice_takes_over_where_the_first_is_not_supported() -> None:
    def memory(handle: object, version: int | None = None) -> SimpleNamespace:
        if version:
            raise error(13)  # no such function in this driver
        return SimpleNamespace(used=21)

    made_up = MadeUp(HANDLE | {"nvmlDeviceGetMemoryInfo": memory})
    record = read_through(made_up, position(), "begin")
    assert told(record, "memory_used_bytes") == [21, 21]
    assert made_up.calls["nvmlDeviceGetMemoryInfo"] == 3  # the newer query once, then the older
    (problem,) = record.problems(3)
    assert problem.startswith("device 3: memory_used_bytes: the driver's own part may be included")


def test_a_failure_is_null_with_its_reason_counted_and_asked_again() -> None:
    answers = iter([error(UNKNOWN), 300_000, error(UNKNOWN)])

    def power(handle: object) -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    record = read_through(MadeUp(HANDLE | {POWER: power, ENERGY: 1_000}), position(), "begin", "finish")
    assert told(record, "power_watts") == [300.0] and told(record, "energy_joules") == [1.0] * 3
    assert [failed for _, _, _, failed in record.readings] == [
        {"power_watts": "Unknown Error"}, {}, {"power_watts": "Unknown Error"}
    ]  # fmt: skip
    assert record.problems(1) == ["device 1: power_watts failed 2 times: Unknown Error"]


def test_what_cannot_be_told_is_null_with_its_reason_and_no_problem() -> None:
    lists = dict.fromkeys(("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"), [])
    record = read_through(MadeUp(HANDLE | lists), position())
    assert told(record, "other_processes") == []
    (reading,) = record.readings
    assert reading[3]["other_processes"].startswith("attribution unavailable")
    assert record.problems(0) == []  # a container hides the processes: nothing of the watcher's has failed


def test_a_lost_device_is_told_and_stops_no_other() -> None:
    lost = dict.fromkeys((POWER, ENERGY), error(LOST))
    gone = read_through(MadeUp(HANDLE | lost), position(uuid="GPU-gone"))
    fine = read_through(MadeUp(HANDLE | {POWER: 1_000}), position())
    assert gone.problems(0) == ["device 0: energy_joules, power_watts failed 2 times: the GPU is lost"]
    assert told(gone, "host_rss_bytes")  # its worker is still read
    assert told(fine, "power_watts") == [1.0] and fine.problems(1) == []


@pytest.mark.parametrize("number", [-1, 10**9, float("nan")])
def test_a_number_that_cannot_be_right_is_not_passed_on(number: float) -> None:
    record = read_through(MadeUp(HANDLE | {"nvmlDeviceGetTemperature": number, POWER: 1_000}), position())
    assert told(record, "temperature_celsius") == [] and told(record, "power_watts") == [1.0]
    (problem,) = record.problems(0)
    assert problem == f"device 0: temperature_celsius failed 1 time: {number:g} cannot be right"


def test_an_answer_of_an_unknown_kind_spoils_no_other_gauge() -> None:
    made_up = MadeUp(HANDLE | {"nvmlDeviceGetUtilizationRates": "not a structure", POWER: 1_000})
    record = read_through(made_up, position())
    assert told(record, "power_watts") == [1.0]
    assert "AttributeError" in record.problems(0)[0]


def test_without_nvml_every_gpu_gauge_says_why_and_the_worker_is_read() -> None:
    def none() -> Nvml:
        raise NvmlUnavailable("NVML is not available: no library")

    record = read_through(none, position())
    assert record.unavailable == dict.fromkeys(GPU_COLUMNS, "NVML is not available: no library")
    assert told(record, "host_rss_bytes")
    assert record.problems(0) == ["device 0: the GPU was not watched: NVML is not available: no library"]


def test_on_a_cpu_only_the_process_has_gauges() -> None:
    record = read_through(MadeUp(), position(gpu=False, uuid=None), "begin")
    assert record.unavailable == {}
    assert {name for _, _, values, _ in record.readings for name in values} <= set(PROCESS_COLUMNS)


def test_what_is_read_elsewhere_says_so() -> None:
    where = position(gpu_note="read at position 0", pid_note="one process")
    record = read_through(MadeUp(), where, "begin", "finish")
    assert record.unavailable == dict.fromkeys(GPU_COLUMNS, "read at position 0") | dict.fromkeys(
        PROCESS_COLUMNS, "one process"
    )
    # A moment at the start and at each mark all the same, so that the table has the reasons.
    assert [values for _, _, values, _ in record.readings] == [{}, {}, {}]


def test_a_device_that_nvml_does_not_know_is_told() -> None:
    record = read_through(MadeUp({"nvmlDeviceGetHandleByUUID": error(6)}), position(uuid="GPU-x"))
    assert "NVML knows no device GPU-x" in record.problems(0)[0]
