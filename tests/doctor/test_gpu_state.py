"""Modes, errors, clocks, temperature and power of a GPU."""

from __future__ import annotations

from typing import Any

import pynvml
import pytest

from bench.nvml import Answer

from .made_up import gpu, machine, said

UNCORRECTED = ("nvmlDeviceGetTotalEccErrors", "h0", pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
CORRECTED = ("nvmlDeviceGetTotalEccErrors", "h0", pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, pynvml.NVML_VOLATILE_ECC)
ECC_ON = {"nvmlDeviceGetEccMode": [1, 1]}
LIMIT, DEFAULT_LIMIT = "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetPowerManagementDefaultLimit"
WIDTH, WIDEST = "nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetMaxPcieLinkWidth"
HOT, SLOWDOWN = "nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureThreshold"
ROWS = "nvmlDeviceGetRemappedRows"
EVENTS, THROTTLE = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"


@pytest.mark.parametrize(
    ("title", "answers", "status", "fact"),
    [
        ("MIG", {}, "ok", "this GPU has none"),
        ("MIG", {"nvmlDeviceGetMigMode": [0, 0]}, "ok", "off"),
        ("MIG", {"nvmlDeviceGetMigMode": [0, 1]}, "warning", "off and will be on"),
        ("MIG", {"nvmlDeviceGetMigMode": [1, 1]}, "warning", "on, with 0 instance(s)"),
        ("persistence mode", {"nvmlDeviceGetPersistenceMode": 1}, "ok", "on"),
        ("persistence mode", {"nvmlDeviceGetPersistenceMode": 0}, "info", "off"),
        ("persistence mode", {}, "info", "persistence mode unknown: not supported by this device"),
        ("compute mode", {"nvmlDeviceGetComputeMode": 0}, "ok", "DEFAULT"),
        ("compute mode", {"nvmlDeviceGetComputeMode": 2}, "problem", "PROHIBITED"),
        ("compute mode", {"nvmlDeviceGetComputeMode": 3}, "warning", "EXCLUSIVE_PROCESS"),
        ("compute mode", {}, "info", "compute mode unknown: not supported by this device"),
        ("ECC", {}, "info", "ECC unknown: not supported by this device"),
        ("ECC", {"nvmlDeviceGetEccMode": [0, 0]}, "info", "off"),
        ("ECC", {"nvmlDeviceGetEccMode": [0, 1]}, "warning", "off and will be on"),
        ("ECC", ECC_ON, "ok", "on, error counts unknown"),
        ("ECC", ECC_ON | {UNCORRECTED: 0, CORRECTED: 0}, "ok", "on, no errors since the driver was loaded"),
        ("ECC", ECC_ON | {UNCORRECTED: 0, CORRECTED: 5}, "info", "on, 5 corrected errors since the driver was loaded"),
        (
            "ECC",
            ECC_ON | {UNCORRECTED: 2, CORRECTED: 5},
            "problem",
            "2 uncorrected memory errors since the driver was loaded",
        ),
        ("remapped rows", {ROWS: (0, 0, 0, 0)}, "ok", "0 after corrected and 0 after uncorrected errors"),
        ("remapped rows", {ROWS: (1, 2, 0, 0)}, "info", "1 after corrected and 2 after uncorrected errors"),
        (
            "remapped rows",
            {ROWS: (1, 2, 1, 0)},
            "warning",
            "1 after corrected and 2 after uncorrected errors; one waits for a reset",
        ),
        (
            "remapped rows",
            {ROWS: (1, 2, 1, 1)},
            "problem",
            "1 after corrected and 2 after uncorrected errors; a remapping failed",
        ),
        ("clocks", {EVENTS: 0}, "ok", "nothing holds the clocks down now"),
        ("clocks", {EVENTS: 1}, "ok", "nothing holds the clocks down now"),
        ("clocks", {EVENTS: 2}, "info", "clocks are held down now by: clocks are set by hand"),
        (
            "clocks",
            {EVENTS: 0x24},
            "warning",
            "clocks are held down now by: power cap (software), thermal slowdown (software)",
        ),
        ("clocks", {THROTTLE: 0x80}, "warning", "clocks are held down now by: power brake from outside"),
        ("clocks", {}, "info", "what holds the clocks unknown: not supported by this device"),
        ("temperature", {HOT: 55}, "ok", "55 °C"),
        ("temperature", {HOT: 79, SLOWDOWN: 89}, "ok", "79 °C, slows down at 89 °C"),
        ("temperature", {HOT: 80, SLOWDOWN: 89}, "warning", "80 °C, slows down at 89 °C"),
        ("temperature", {}, "info", "temperature unknown: not supported by this device"),
        ("power limit", {LIMIT: 700000, DEFAULT_LIMIT: 700000}, "ok", "700 W"),
        ("power limit", {LIMIT: 700000}, "ok", "700 W"),
        ("power limit", {LIMIT: 450000, DEFAULT_LIMIT: 700000}, "warning", "450 W, below the default of 700 W"),
        ("power limit", {}, "info", "power limit unknown: not supported by this device"),
        ("PCIe link", {WIDTH: 16, WIDEST: 16}, "ok", "x16"),
        ("PCIe link", {WIDTH: 8, WIDEST: 16}, "warning", "x8 of x16"),
    ],
)
def test_every_answer_has_its_finding(title: str, answers: dict[Any, Any], status: str, fact: str) -> None:
    (found,) = said(machine(answers), "gpus", title)
    assert (found.status, found.fact) == (status, f"GPU 0: {fact}")
    assert found.status == "ok" or "unknown" in found.fact or found.effect is not None


@pytest.mark.parametrize("title", ["remapped rows", "PCIe link"])
def test_what_many_cards_do_not_have_is_not_mentioned(title: str) -> None:
    assert said(machine(), "gpus", title) == []


def test_a_power_limit_is_mended_by_its_default() -> None:
    (found,) = said(machine({LIMIT: 450000, DEFAULT_LIMIT: 700000}), "gpus", "power limit")
    assert found.remedy == "sudo nvidia-smi -pl 700"


def test_mig_instances_are_counted() -> None:
    box = machine({"nvmlDeviceGetMigMode": [1, 1]}, gpus=[gpu(0, mig_uuids=("MIG-a", "MIG-b"))])
    (found,) = said(box, "gpus", "MIG")
    assert found.fact == "GPU 0: on, with 2 instance(s)"


def test_a_lost_gpu_is_a_problem_and_the_others_are_still_read() -> None:
    lost = Answer(reason="the GPU is lost", lost=True)
    answers = {("nvmlDeviceGetMigMode", "h0"): lost, ("nvmlDeviceGetMigMode", "h1"): [0, 0]}
    first, second = said(machine(answers, gpus=2), "gpus", "MIG")
    assert (first.status, first.fact) == ("problem", "GPU 0: MIG mode: the GPU is lost")
    assert (second.status, second.fact) == ("ok", "GPU 1: off")
