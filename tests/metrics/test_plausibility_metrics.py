"""Utilization, FLOPs and communication against numbers worked out by hand, and cards by their names."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from bench.metrics import Value, registry
from bench.metrics._peaks import PEAKS, peak_of, published_flops_per_second
from bench.schema import Case, DeviceTrace, Trace

CASE = Case(
    workload="resnet50", strategy="ddp", device_type="cuda", devices=(0, 1), global_batch_size=64, size="standard",
    precision="bf16",
)  # fmt: skip
# 2 steps a round: 0.5 s and 1 s a step; 156 TFLOP a step. Two A100 have 2 x 312 TFLOP/s in bf16.
TRACE = Trace(
    case=CASE,
    steps_per_round=2,
    round_seconds=(1.0, 2.0),
    devices=(
        DeviceTrace(device_index=0, communication_bytes=100),
        DeviceTrace(device_index=1, communication_bytes=200),
    ),
    flops_per_step=156e12,
    device_names=("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"),
    matmul_flops_per_second=(300e12, 220e12),
)


def values(metric: str, trace: Trace = TRACE) -> list[Value]:
    return list(registry.get(metric).compute(trace))


def test_flops_of_a_step_are_one_value() -> None:
    assert values("model_flops_per_step") == [Value(value=156e12)]


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("model_flops_utilization", [0.5, 0.25]),  # 156 / (0.5 x 624), 156 / (1 x 624)
        ("matmul_utilization", [0.6, 0.3]),  # 156 / (0.5 x 520), 156 / (1 x 520)
    ],
)
def test_utilization_of_each_round(metric: str, expected: list[float]) -> None:
    found = values(metric)
    assert [value.value for value in found] == pytest.approx(expected)
    assert [(value.round_index, value.device_index, value.note) for value in found] == [
        (0, None, None), (1, None, None)
    ]  # fmt: skip


def test_mixed_cards_are_summed() -> None:
    mixed = replace(TRACE, device_names=("NVIDIA A100-SXM4-80GB", "NVIDIA L4"))
    # 312 + 121 TFLOP/s
    assert values("model_flops_utilization", mixed)[0].value == pytest.approx(156 / (0.5 * 433))


@pytest.mark.parametrize(
    ("metric", "trace", "words"),
    [
        ("model_flops_per_step", replace(TRACE, flops_per_step=None, flops_unknown="planted"), "planted"),
        ("model_flops_utilization", replace(TRACE, flops_per_step=None, flops_unknown="planted"), "planted"),
        ("matmul_utilization", replace(TRACE, flops_per_step=None), "not counted"),
        ("model_flops_utilization", replace(TRACE, device_names=("NVIDIA A1000",)), "'NVIDIA A1000'"),
        ("model_flops_utilization", replace(TRACE, device_names=("Tesla T4",)), "no published peak in bf16"),
        ("model_flops_utilization", replace(TRACE, case=replace(CASE, device_type="cpu")), "CPU"),
        ("matmul_utilization", replace(TRACE, matmul_flops_per_second=(), matmul_unknown="planted"), "planted"),
        ("matmul_utilization", replace(TRACE, matmul_flops_per_second=()), "no matrix product"),
    ],
)
def test_what_cannot_be_known_is_one_null_with_the_reason(metric: str, trace: Trace, words: str) -> None:
    (value,) = values(metric, trace)
    assert value.value is None and value.note is not None and words in value.note


def test_the_product_works_on_cpu() -> None:
    cpu = replace(TRACE, case=replace(CASE, device_type="cpu"))
    assert values("matmul_utilization", cpu)[0].value == pytest.approx(0.6)


def test_communication_is_per_device_with_a_reason_where_it_is_unknown() -> None:
    assert [value.value for value in values("communication_bytes_per_step")] == [100, 200]
    blind = DeviceTrace(device_index=1, communication_unknown="planted")
    none, nothing, unknown = values(
        "communication_bytes_per_step",
        replace(
            TRACE, devices=(DeviceTrace(device_index=0, communication_bytes=0), DeviceTrace(device_index=1), blind)
        ),
    )
    assert (none.value, none.note) == (0, None)
    assert (nothing.value, nothing.note) == (None, "not looked at")
    assert (unknown.value, unknown.note) == (None, "planted")


@pytest.mark.parametrize(
    ("name", "bf16"),
    [
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989.5),
        ("NVIDIA B200", 2250),
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA A100-PCIE-40GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA A10", 125),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
        ("NVIDIA RTX A6000", 154.8),
        ("NVIDIA GeForce RTX 3090", 71),
        ("NVIDIA GeForce RTX 4090", 165.2),
        ("NVIDIA GeForce RTX 5090", 209.5),
    ],
)
def test_a_card_is_known_by_its_whole_name(name: str, bf16: float) -> None:
    assert published_flops_per_second([name], "bf16") == pytest.approx(bf16 * 1e12)


@pytest.mark.parametrize(
    ("name", "fp32"), [("Tesla V100-SXM2-16GB", 15.7), ("Tesla V100-PCIE-32GB", 14), ("Tesla T4", 8.1)]
)
def test_older_cards_have_fp32_only(name: str, fp32: float) -> None:
    assert published_flops_per_second([name], "fp32") == pytest.approx(fp32 * 1e12)
    for precision in ("tf32", "bf16"):
        assert published_flops_per_second([name], precision) == f"{name} has no published peak in {precision}"


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A1000", "NVIDIA RTX A1000", "NVIDIA A100X", "NVIDIA A10G", "NVIDIA A10M", "NVIDIA A800-SXM4-80GB",
        "NVIDIA GH200 480GB", "NVIDIA GB200", "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA H20", "NVIDIA L40",
        "NVIDIA GeForce RTX 3090 Ti", "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 4090 Laptop GPU",
        "Quadro RTX 6000", "NVIDIA T400", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "", "AMD Instinct MI300X",
    ],
)  # fmt: skip
def test_a_card_that_is_not_in_the_table_is_not_taken_for_another(name: str) -> None:
    assert peak_of(name) is None
    assert repr(name) in str(published_flops_per_second([name], "fp32"))


def test_every_peak_names_its_source_and_is_dense() -> None:
    for peak in PEAKS:
        assert re.search("datasheet|whitepaper", peak.source)
        assert peak.tf32 is None or peak.bf16 is None or peak.fp32 <= peak.tf32 < peak.bf16
