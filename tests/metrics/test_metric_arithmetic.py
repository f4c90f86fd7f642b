"""Every metric against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.metrics import Value, registry
from bench.schema import Case, DeviceTrace, ParityTrace, Trace

CASE = Case(
    workload="bert_small", strategy="ddp", device_type="cuda", devices=(0, 1), global_batch_size=64, size="standard"
)
# Three rounds of 5 steps; 128 tokens a sample; a full data set of 6,400 samples, that is 100 steps.
TRACE = Trace(
    case=CASE,
    steps_per_round=5,
    warmup_round_seconds=(9.0, 9.0),
    round_seconds=(2.0, 2.5, 4.0),
    tokens_per_sample=128,
    epoch_samples=6400,
    devices=(
        DeviceTrace(device_index=0, peak_allocated_bytes=1000, peak_reserved_bytes=2000, host_peak_rss_bytes=3000,
                    cpu_percent=150.0),
        DeviceTrace(device_index=1, peak_allocated_bytes=1100, peak_reserved_bytes=2200, host_peak_rss_bytes=3300,
                    cpu_percent=50.0),
    ),
)  # fmt: skip
CPU_TRACE = replace(TRACE, case=replace(CASE, device_type="cpu"))


def values(metric: str, trace: Trace = TRACE) -> list[Value]:
    return list(registry.get(metric).compute(trace))


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("step_seconds", [0.4, 0.5, 0.8]),  # 2 / 5, 2.5 / 5, 4 / 5
        ("samples_per_second", [160.0, 128.0, 80.0]),  # 64 * 5 = 320 samples over 2, 2.5 and 4 s
        ("tokens_per_second", [20480.0, 16384.0, 10240.0]),  # those times 128
        ("epoch_seconds", [40.0, 50.0, 80.0]),  # 100 steps
    ],
)
def test_metrics_of_a_round(metric: str, expected: list[float]) -> None:
    found = values(metric)
    assert [value.value for value in found] == pytest.approx(expected)
    assert [value.round_index for value in found] == [0, 1, 2]
    assert {value.device_index for value in found} == {None}


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("peak_allocated_bytes", [1000, 1100]),
        ("peak_reserved_bytes", [2000, 2200]),
        ("host_peak_rss_bytes", [3000, 3300]),
        ("cpu_percent", [150.0, 50.0]),
    ],
)
def test_metrics_of_a_device_are_never_summed_or_averaged(metric: str, expected: list[float]) -> None:
    found = values(metric)
    assert [(value.device_index, value.value, value.round_index, value.note) for value in found] == [
        (0, expected[0], None, None), (1, expected[1], None, None)
    ]  # fmt: skip


@pytest.mark.parametrize("metric", ["peak_allocated_bytes", "peak_reserved_bytes"])
def test_allocator_figures_do_not_exist_on_cpu(metric: str) -> None:
    assert values(metric, CPU_TRACE) == []


@pytest.mark.parametrize(
    "metric", ["peak_allocated_bytes", "peak_reserved_bytes", "host_peak_rss_bytes", "cpu_percent"]
)
def test_figure_that_is_missing_is_null_with_a_note_and_never_zero(metric: str) -> None:
    bare = replace(TRACE, devices=(TRACE.devices[0], DeviceTrace(device_index=1)))
    first, second = values(metric, bare)
    assert first.value is not None and first.note is None
    assert second.value is None and second.note and second.device_index == 1


def test_metrics_without_a_meaning_for_the_trace_leave_nothing() -> None:
    images = replace(TRACE, tokens_per_sample=None, epoch_samples=None)
    assert (
        values("tokens_per_second", images) == values("epoch_seconds", images) == values("parity_error", images) == []
    )


def test_parity_error_is_the_only_value_of_a_parity_launch() -> None:
    trace = Trace(case=replace(CASE, purpose="parity"), parity=ParityTrace(error=2.5e-7))
    found = {item.declaration.name: list(item.compute(trace)) for item in registry}
    assert found.pop("parity_error") == [Value(value=2.5e-7)]
    assert found == {name: [] for name in found}


def test_parity_error_notes_parameters_without_a_gradient_on_one_device_either() -> None:
    parity = ParityTrace(error=1e-7, unused_parameters=("a", "b", "c", "d"))
    (value,) = values("parity_error", Trace(case=CASE, parity=parity))
    assert value.note is not None and "for 4 of the parameters" in value.note and "a, b, c" in value.note


def test_every_metric_declares_its_unit_and_meaning() -> None:
    metrics = {item.declaration.name: item.declaration for item in registry}
    assert set(metrics) >= {
        "step_seconds", "samples_per_second", "tokens_per_second", "epoch_seconds", "parity_error",
        "peak_allocated_bytes", "peak_reserved_bytes", "host_peak_rss_bytes", "cpu_percent",
        "utilization_percent", "utilization_p95_percent", "sm_activity_percent", "power_watts", "joules_per_sample",
        "device_memory_used_bytes", "memory_imbalance", "other_processes", "throttled_percent",
    }  # fmt: skip
    assert all(metric.meaning for metric in metrics.values())
    assert {name for name, metric in metrics.items() if not metric.unit} == {
        "parity_error", "memory_imbalance", "model_flops_utilization", "matmul_utilization",
    }  # fmt: skip
    for suffix, unit in (("_seconds", "s"), ("_bytes", "bytes"), ("_percent", "%"), ("_watts", "W")):
        assert {metric.unit for name, metric in metrics.items() if name.endswith(suffix)} == {unit}
    for name in ("samples_per_second", "tokens_per_second"):
        assert metrics[name].better == "higher"
    assert metrics["step_seconds"].better == "lower"
    peaks = {name for name in metrics if "peak" in name} - {"predicted_peak_bytes"}
    largest = {name for name, metric in metrics.items() if metric.combine == "largest"} - {"predicted_peak_bytes"}
    counted = {"model_flops_per_step", "communication_bytes_per_step"}
    assert largest == peaks | counted | {"device_memory_used_bytes", "other_processes", "first_step_seconds"}, (
        "what has to fit, or must not be, and what only the first launch pays"
    )
