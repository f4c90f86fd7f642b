"""Scaling of a made-up run: efficiencies by hand, which cases count, and what is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.analysis.curves import Curve, CurvePoint
from bench.analysis.intervals import ratio_interval
from bench.analysis.scaling import ScalingSummary, scaling_summaries
from bench.analysis.summary import summarise
from bench.analysis.wording import verdict
from bench.recording.reader import RunData, read_run
from bench.schema import Case
from tests.recording.made_up import made_case, write_run
from tests.reporting.made_up_scaling import scaling_run

Plan = list[tuple[Case, list[float], list[float | None]]]


def run_of(folder: Path, *cases: tuple[Case, list[float]], **rest: Any) -> RunData:
    plan: Plan = [(case, rates, []) for case, rates in cases]
    return read_run(write_run(folder, plan, **rest))


def of_kind(data: RunData, kind: str) -> ScalingSummary:
    (found,) = [summary for summary in scaling_summaries(data) if summary.kind == kind]
    return found


def curve_of(summary: ScalingSummary, label: str) -> Curve:
    return next(curve for curve in summary.curves if curve.label == label)


def at(summary: ScalingSummary, label: str, count: int) -> CurvePoint:
    return next(point for point in curve_of(summary, label).points if point.count == count)


def text_of(summary: ScalingSummary) -> str:
    return "\n".join(summary.sentences)


# --- figures by hand ------------------------------------------------------------------------------------


def test_strong_scaling_is_held_against_single_at_the_same_global_batch(tmp_path: Path) -> None:
    data = run_of(
        tmp_path,
        (made_case("single", 1, 64), [100.0]),
        (made_case("ddp", 1, 64), [80.0]),
        (made_case("ddp", 2, 64), [160.0]),
    )
    summary = of_kind(data, "strong")
    assert (summary.batch, summary.most_devices, summary.setting) == (64, 2, "global batch 64, bf16")
    one, two = curve_of(summary, "ddp").points
    # 160 / 100 = 1.6, over 2 devices 0.8; against ddp's own 80: 160 / 80 / 2 = 1; (1 / 1.6 - 0.5) / 0.5 = 0.25.
    assert two.speedup and two.efficiency and two.own and two.serial
    assert two.speedup.value == pytest.approx(1.6) and two.efficiency.value == pytest.approx(0.8)
    assert two.own.value == pytest.approx(1.0) and two.serial.value == pytest.approx(0.25)
    assert one.efficiency and one.efficiency.value == pytest.approx(0.8) and (one.own, one.serial) == (None, None)
    assert two.efficiency.low is None and "too few launches" in text_of(summary)


def test_weak_scaling_is_held_against_single_at_the_same_batch_per_device(tmp_path: Path) -> None:
    data = run_of(
        tmp_path,
        (made_case("single", 1, 32), [100.0]),
        (made_case("ddp", 2, 64), [180.0]),
        (made_case("ddp", 4, 128), [300.0]),
    )
    summary = of_kind(data, "weak")
    assert (summary.batch, summary.setting) == (32, "32 samples per device, bf16")
    # T(1, 32) = 0.32 s, T(2, 64) = 64 / 180 s: 0.9. T(4, 128) = 128 / 300 s: 0.75.
    found = {point.count: point for point in curve_of(summary, "ddp").points}
    assert {count: point.efficiency and point.efficiency.value for count, point in found.items()} == {
        2: pytest.approx(0.9),
        4: pytest.approx(0.75),
    }
    assert found[4].serial is None and found[4].own is None, "ddp was not measured on one device"
    assert "ddp, 4 devices: 3.00 times" in text_of(summary) and "an efficiency of 75.0 %" in text_of(summary)


def test_the_interval_is_that_of_the_ratio_over_the_devices(tmp_path: Path) -> None:
    single, ddp = [100.0, 103.0, 98.0], [160.0, 150.0, 165.0]
    data = run_of(
        tmp_path,
        (made_case("single", 1, 64), single),
        (made_case("ddp", 1, 64), single),
        (made_case("ddp", 2, 64), ddp),
    )
    ratio = ratio_interval(ddp, single)
    point = at(of_kind(data, "strong"), "ddp", 2)
    assert point.efficiency and ratio.low and ratio.high and point.serial
    assert point.efficiency.low == pytest.approx(ratio.low / 2) and point.efficiency.high == pytest.approx(
        ratio.high / 2
    )
    assert point.serial.low == pytest.approx((1 / ratio.high - 0.5) / 0.5)


# --- which cases make a curve ---------------------------------------------------------------------------


def test_a_plain_comparison_has_no_curve(tmp_path: Path) -> None:
    cases = [made_case("single", 1, 64), made_case("ddp", 2, 64), made_case("dp", 2, 64)]
    assert scaling_summaries(run_of(tmp_path, *((case, [100.0]) for case in cases))) == ()


def test_without_a_case_of_single_there_is_no_curve(tmp_path: Path) -> None:
    cases = [made_case("ddp", count, 64) for count in (1, 2, 4)]
    assert scaling_summaries(run_of(tmp_path, *((case, [100.0]) for case in cases))) == ()


def test_precision_accumulation_and_settings_are_kept_apart(tmp_path: Path) -> None:
    cases = []
    for count in (1, 2):
        cases += [
            (made_case("ddp", count, 64), [100.0 * count]),
            (made_case("ddp", count, 64, settings={"bucket_cap_mb": "5"}), [90.0 * count]),
            (made_case("ddp", count, 64, precision="fp32"), [40.0 * count]),
            (made_case("ddp", count, 64, accumulation_steps=2), [95.0 * count]),
        ]
    singles = [made_case("single", 1, 64), made_case("single", 1, 64, precision="fp32")]
    data = run_of(tmp_path, *cases, *((case, [100.0 if case.precision == "bf16" else 50.0]) for case in singles))
    found = {(s.precision, s.accumulation_steps): s for s in scaling_summaries(data) if s.kind == "strong"}
    assert set(found) == {("bf16", 1), ("fp32", 1)}, "single was not measured in two micro-batches"
    assert [curve.label for curve in found["bf16", 1].curves] == ["ddp", "ddp (bucket cap mb 5)"]
    point = at(found["fp32", 1], "ddp", 2)
    assert point.efficiency and point.efficiency.value == pytest.approx(80 / 50 / 2)


def test_counts_between_may_be_missing_and_a_batch_that_does_not_divide_is_strong_only(tmp_path: Path) -> None:
    cases = [(made_case("dp", count, 65), [100.0]) for count in (1, 2, 4)]
    data = run_of(tmp_path, (made_case("single", 1, 65), [100.0]), *cases)
    assert [(s.kind, s.batch) for s in scaling_summaries(data)] == [("strong", 65)]


# --- what counts, and what is only shown ----------------------------------------------------------------


def test_the_law_is_fitted_through_single_and_the_judged_cases(tmp_path: Path) -> None:
    strong = of_kind(read_run(scaling_run(tmp_path)), "strong")
    fit = curve_of(strong, "ddp").fit
    assert fit and fit.counts == (1, 2, 3, 4) and fit.serial.value == pytest.approx(0.1, abs=0.005) and not fit.poor
    # T(1) is single's 0.252 s, not the 2 % more of ddp on one device.
    assert fit.seconds == pytest.approx(0.252, rel=0.005)
    text = text_of(strong)
    assert "Amdahl's law through 1, 2, 3, 4 devices has a serial fraction of" in text
    assert "it does not describe the points: a step on 2 devices is" in text, "fsdp turns back"
    assert "above 100 %: slower than one device" in text, "dp"
    assert "ddp scales best to 4 devices, surely." in text


def test_two_counts_give_karp_and_flatts_fraction_and_say_why_there_is_no_fit(tmp_path: Path) -> None:
    rates = {("single", 1): [100.0, 101.0, 99.0], ("ddp", 1): [99.0, 98.0, 97.0], ("ddp", 2): [160.0, 161.0, 159.0]}
    data = run_of(tmp_path, *((made_case(*key, 64), of) for key, of in rates.items()))
    summary = of_kind(data, "strong")
    curve = curve_of(summary, "ddp")
    assert curve.fit is None and curve.no_fit
    assert "serial fraction of 25.0 % (" in text_of(summary) and "Karp and Flatt" in text_of(summary)
    assert "it needs 3 different numbers of devices, one included, and there are 2 (1, 2)" in text_of(summary)


def test_more_than_linear_is_said_and_not_cut_off(tmp_path: Path) -> None:
    data = run_of(tmp_path, *((made_case(name, n, 64), [rate] * 3) for name, n, rate in
                              [("single", 1, 100.0), ("ddp", 2, 210.0), ("ddp", 4, 450.0)]))  # fmt: skip
    curve = curve_of(of_kind(data, "strong"), "ddp")
    assert curve.fit and curve.fit.serial.value < 0
    said = "below 0: faster than linear, for which the law has no room"
    assert f"{said};" in text_of(of_kind(data, "strong")), "three launches that agree: surely"
    data = run_of(tmp_path / "noisy", *((made_case(name, n, 64), rates) for name, n, rates in
                  [("single", 1, [90.0, 110.0]), ("ddp", 1, [90.0, 110.0]), ("ddp", 2, [205.0, 206.0])]))  # fmt: skip
    assert f"{said} (not surely)" in text_of(of_kind(data, "strong"))


def test_emulated_cases_are_shown_with_figures_and_make_no_claim(tmp_path: Path) -> None:
    for summary in scaling_summaries(read_run(scaling_run(tmp_path, device_type="cpu"))):
        dp = curve_of(summary, "dp")
        assert all(point.efficiency and not point.judged for point in dp.points)
        assert dp.last is None and dp.fit is None
        assert "Shown and not judged: dp (emulated)" in text_of(summary) and "\ndp, " not in f"\n{text_of(summary)}"


def test_oversubscribed_counts_make_no_claim(tmp_path: Path) -> None:
    one, twice = made_case("ddp", 1, 64), replace(made_case("ddp", 2, 64), devices=(0, 0))
    data = run_of(tmp_path, (made_case("single", 1, 64), [100.0]), (one, [99.0]), (twice, [90.0]))
    summary = of_kind(data, "strong")
    assert curve_of(summary, "ddp").last is None
    assert text_of(summary) == "Shown and not judged: ddp on 2 (oversubscribed)."


def test_a_case_out_of_memory_has_no_figure_and_is_named(tmp_path: Path) -> None:
    weak = of_kind(read_run(scaling_run(tmp_path)), "weak")
    last = at(weak, "fsdp", 4)
    assert (last.speedup, last.efficiency, last.own) == (None, None, None)
    assert last.row.result.status == "oom" and last.row.result.reason
    assert "fsdp, 3 devices: " in text_of(weak) and "Shown and not judged: fsdp on 4 (oom)." in text_of(weak)


def test_where_single_does_not_fit_it_says_so(tmp_path: Path) -> None:
    failed = [(made_case("single", 1, 64), {"status": "oom", "reason": "2 GiB asked for"})]
    cases = [(made_case("ddp", count, 64), [100.0 * count]) for count in (1, 2, 4)]
    summary = of_kind(run_of(tmp_path, *cases, failed=failed), "strong")
    curve = curve_of(summary, "ddp")
    assert curve.baseline is None and curve.fit is None and curve.no_fit == "there is no T(1)"
    assert text_of(summary).startswith("Against single nothing can be told of ddp: single, 1 device")
    assert "ended as oom, 2 GiB asked for" in text_of(summary)
    own = at(summary, "ddp", 4).own
    assert own and own.value == pytest.approx(1.0), "against itself it can be told"


def test_a_case_whose_parity_missed_is_no_point_of_the_fit(tmp_path: Path) -> None:
    cases = [
        (made_case(name, n, 64), [100.0 * n] * 2) for name, n in [("single", 1), ("ddp", 2), ("ddp", 3), ("ddp", 4)]
    ]
    parity = [(made_case("ddp", 3, 64, precision="fp32"), 0.9)]
    curve = curve_of(of_kind(run_of(tmp_path, *cases, parity=parity), "strong"), "ddp")
    assert curve.fit and curve.fit.counts == (1, 2, 4)


# --- beside the comparison ------------------------------------------------------------------------------


def test_cases_at_other_batches_are_no_rivals_of_the_fastest(tmp_path: Path) -> None:
    rates = {("single", 1, 256): 100.0, ("ddp", 4, 256): 390.0, ("fsdp", 4, 256): 300.0, ("ddp", 4, 252): 388.0,
             ("fsdp", 4, 252): 389.9}  # fmt: skip
    data = run_of(tmp_path, *((made_case(*key), [rate, rate * 1.01, rate * 0.99]) for key, rate in rates.items()))
    (summary,) = summarise(data)
    assert [row.title for row in summary.rivals] == []
    assert "was the fastest of the 3 ranked cases at that batch" in verdict(summary)
