"""The matrix product that utilization is held against: measured on real workers, and looked up by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bench.measuring import products, yardstick
from bench.measuring.flops import FlopCount
from bench.measuring.launch import Clock, LaunchResult
from bench.measuring.launcher import Launcher
from bench.measuring.products import ProductJob, Products, best_product, measure_products
from bench.measuring.yardstick import Yardstick
from bench.schema import Device, MatrixProduct, Outcome, Trace
from tests.measuring.support import make_case, make_job

CPU = torch.device("cpu")


def product(device: int, at_once: int, rate: float, precision: str = "fp32") -> MatrixProduct:
    return MatrixProduct(
        device_index=device, precision=precision, devices_at_once=at_once, size=512, flops_per_second=rate
    )


MADE_UP = Products(found=(product(0, 1, 90.0), product(0, 2, 60.0), product(1, 2, 50.0), product(0, 1, 7.0, "bf16")))


def test_each_device_alone_and_together_in_each_precision(launcher: Launcher) -> None:
    job = ProductJob(device_type="cpu", devices=(0, 1), precisions=("bf16", "fp32"))
    measured = measure_products(launcher, job)
    assert measured.problem is None
    assert [(item.precision, item.devices_at_once, item.device_index) for item in measured.found] == [
        (precision, at_once, device) for precision in ("bf16", "fp32") for at_once, device in ((1, 0), (2, 0), (2, 1))
    ]
    assert all(item.size in products.SIZES["cpu"] and item.flops_per_second > 1e8 for item in measured.found)


def test_a_product_that_fails_is_a_note_and_what_was_measured_stays(launcher: Launcher) -> None:
    job = ProductJob(device_type="cpu", devices=(0,), precisions=("fp32", "fp7"))
    measured = measure_products(launcher, job)
    assert [item.precision for item in measured.found] == ["fp32"]
    assert measured.problem is not None and measured.problem.startswith("the matrix product could not be measured: ")


@pytest.mark.parametrize(
    ("devices", "precision", "expected"),
    [
        ((0,), "fp32", (90.0,)),  # alone
        ((0, 1), "fp32", (60.0, 50.0)),  # both at work
        ((1,), "fp32", (50.0,)),  # was not measured alone
        ((0, 0), "fp32", (45.0, 45.0)),  # listed twice: one device
        ((0, 1), "bf16", ()),
        ((0, 2), "fp32", ()),
    ],
)
def test_a_case_is_held_against_as_many_devices(
    devices: tuple[int, ...], precision: str, expected: tuple[float, ...]
) -> None:
    assert MADE_UP.flops_per_second(devices, precision) == expected


def test_the_fastest_size_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {512: 2 * 512**3 / 5e9, 1024: 2 * 1024**3 / 4e9}
    monkeypatch.setattr(products, "product_seconds", lambda device, precision, size, budget: seconds[size])
    assert best_product(CPU, "fp32") == {"size": 512, "flops_per_second": pytest.approx(5e9)}


def test_a_slow_device_is_not_tried_at_larger_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def slow(device: Any, precision: str, size: int, budget: float) -> float:
        tried.append(size)
        return 2 * budget

    monkeypatch.setattr(products, "product_seconds", slow)
    best_product(CPU, "fp32")
    assert tried == [512]


@pytest.mark.parametrize("fits", [True, False])
def test_a_size_that_does_not_fit_is_left_out_unless_it_is_the_first(
    monkeypatch: pytest.MonkeyPatch, fits: bool
) -> None:
    def first_only(device: Any, precision: str, size: int, budget: float) -> float:
        if size == 512 and fits:
            return 0.01
        raise torch.OutOfMemoryError("planted")

    monkeypatch.setattr(products, "product_seconds", first_only)
    if fits:
        assert best_product(CPU, "fp32")["size"] == 512
    else:
        with pytest.raises(torch.OutOfMemoryError):
            best_product(CPU, "fp32")


@pytest.fixture
def made_up_yardstick(monkeypatch: pytest.MonkeyPatch) -> tuple[Yardstick, list[ProductJob], list[str]]:
    jobs: list[ProductJob] = []
    counted: list[str] = []

    def measure(launcher: Any, job: ProductJob) -> Products:
        jobs.append(job)
        return MADE_UP

    def count(launcher: Any, job: Any) -> FlopCount:
        counted.append(job.case.workload)
        return FlopCount(per_sample=5.0)

    monkeypatch.setattr(yardstick, "measure_products", measure)
    monkeypatch.setattr(yardstick, "count_flops", count)
    launcher: Any = SimpleNamespace()
    return Yardstick(launcher, [Device(index=0, name="A"), Device(index=1, name="B")]), jobs, counted


def test_products_are_those_of_the_devices_and_precisions_in_use(made_up_yardstick: Any) -> None:
    made, jobs, _ = made_up_yardstick
    made.multiply([make_case("single"), make_case("ddp"), make_case("ddp", precision="bf16", devices=(1, 1))])
    assert jobs == [ProductJob(device_type="cpu", devices=(0, 1), precisions=("bf16", "fp32"))]
    made.multiply([])
    assert len(jobs) == 1, "nothing to time, nothing to hold it against"


def test_a_trace_gets_what_it_is_held_against_and_a_workload_is_counted_once(made_up_yardstick: Any) -> None:
    made, _, counted = made_up_yardstick
    made.multiply([make_case("ddp")])
    for strategy, batch in (("ddp", 8), ("single", 4)):
        job = make_job(make_case(strategy, batch=batch))
        result = LaunchResult(outcome=Outcome(status="ok"), clock=Clock(), trace=Trace(case=job.case))
        trace = made.held_against(result, job).trace
        assert trace is not None and trace.flops_per_step == 5.0 * batch
        assert trace.device_names == (("A", "B") if strategy == "ddp" else ("A",))
        assert trace.matmul_flops_per_second == ((60.0, 50.0) if strategy == "ddp" else (90.0,))
    assert counted == ["mnist_cnn"]


def test_a_launch_without_a_trace_is_left_as_it_is(made_up_yardstick: Any) -> None:
    made, _, counted = made_up_yardstick
    failed = LaunchResult(outcome=Outcome(status="error", reason="planted"), clock=Clock())
    assert made.held_against(failed, make_job(make_case("ddp"))) is failed and counted == []
