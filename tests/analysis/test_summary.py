from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.analysis.checks import checks
from bench.analysis.intervals import Interval
from bench.analysis.summary import EMULATED, Row, WorkloadSummary, strategy_label, summarise
from bench.analysis.wording import banner, cpu_share, ends_text, number, times, verdict
from bench.metrics.parity_error import parity_error
from bench.recording.reader import read_run
from bench.recording.writer import RunWriter
from bench.schema import Case, NameValue, ParityTrace, Trace
from tests.recording.made_up import (
    METRICS,
    cpu_run,
    gpu_run,
    made_case,
    made_launch,
    made_run,
    sample,
    timed,
    write_run,
)  # fmt: skip

Plan = list[tuple[Case, list[float], list[float | None]]]


def by_title(summary: WorkloadSummary) -> dict[str, Row]:
    return {row.title: row for row in summary.rows}


def test_ratios_ranking_and_reasons_of_a_gpu_run(tmp_path: Path) -> None:
    summary = summarise(read_run(gpu_run(tmp_path)))[0]
    rows = by_title(summary)
    assert [row.result.axes.strategy for row in summary.ranked[:2]] == ["ddp", "fsdp"]
    assert summary.fastest is rows["ddp, 4 devices, batch 256"]
    excluded = {title: row.excluded for title, row in rows.items() if row.excluded}
    assert excluded == {
        "fsdp1, 4 devices, batch 256": "parity missed",
        "ddp, 4 devices, batch 4096": "oom",
        "balanced_dp, 2 devices, batch 128": "skipped",
        "fsdp, 2 devices, batch 128": "error",
    }
    ddp = rows["ddp, 4 devices, batch 256"]
    assert ddp.versus_single and ddp.versus_dp and ddp.throughput
    assert ddp.versus_single.against == "single, 1 device, batch 256"
    assert ddp.versus_single.interval.value == pytest.approx(4650 / 1290, rel=0.02)
    assert ddp.versus_dp.against == "dp (loss on replica), 4 devices, batch 256", "the better of both"
    assert len(ddp.throughput.launches) == 6 and ddp.throughput.smallest < ddp.throughput.value < ddp.throughput.largest
    assert ddp.memory == tuple(value * 2**30 for value in (20.0, 21.0, 22.0, 23.0))
    text = verdict(summary)
    # ddp and fsdp lie within each other's noise; all others are surely slower
    assert [row.title for row in summary.rivals] == ["fsdp, 4 devices, batch 256"]
    assert text.startswith(
        "No clear winner among ddp, 4 devices, batch 256 / fsdp, 4 devices, batch 256: the intervals"
    )
    assert "over 6 launches include 1; measure with more (--launches). Fastest so far: ddp (4 devices" in text
    assert "times (3." in text and "single at the same global batch and 1.5" in text


def test_a_sure_lead_is_called_the_fastest(tmp_path: Path) -> None:
    plan: Plan = [
        (made_case("single", 1, 64), [100.0, 101.0, 102.0], []),
        (made_case("ddp", 2, 64), [150.0, 151.0, 152.0], []),
    ]
    (summary,) = summarise(read_run(write_run(tmp_path, plan)))
    assert summary.rivals == ()
    assert verdict(summary).startswith("ddp (2 devices, global batch 64, bf16) was the fastest of the 2 ranked cases")


def test_without_a_baseline_it_says_how_to_get_one(tmp_path: Path) -> None:
    (summary,) = summarise(read_run(write_run(tmp_path, [(made_case("ddp", 2, 64), [150.0], [])])))
    assert "was the only case that can be ranked" in verdict(summary)
    assert "add single to --strategies for a baseline" in verdict(summary)


def test_a_sweep_gets_no_advice_on_strategies_that_it_ignores(tmp_path: Path) -> None:
    def told(folder: Path, splits: list[tuple[int, ...]]) -> str:
        writer = RunWriter(folder, made_run(), METRICS)
        for position, sizes in enumerate(splits):
            case = made_case("balanced_dp", len(sizes), sum(sizes), settings={"gpu0_bsz": str(sizes[0])})
            launch = made_launch(case, 0, position, chunk_sizes=sizes)
            writer.add(launch, timed(launch, 100.0))
        (summary,) = summarise(read_run(writer.folder))
        return verdict(summary)

    advice = "add single to --strategies for a baseline"
    assert advice not in told(tmp_path / "two splits", [(8, 24), (16, 16)])
    assert advice in told(tmp_path / "two batches", [(8, 24), (16, 48)])
    assert advice in told(tmp_path / "two counts", [(8, 24), (8, 8, 8, 8)])


def test_by_hand_with_one_launch_at_the_batch_per_device(tmp_path: Path) -> None:
    plan: Plan = [(made_case("single", 1, 32), [100.0], []), (made_case("ddp", 2, 64), [150.0], [])]
    (summary,) = summarise(read_run(write_run(tmp_path, plan)))
    ratio = by_title(summary)["ddp, 2 devices, batch 64"].versus_single
    assert ratio and ratio.basis == "same batch per device"
    assert ratio.interval.value == pytest.approx(1.5) and ratio.interval.low is None
    assert "1.50 times (too few launches for an interval) single at the same batch per device" in verdict(summary)
    assert "No clear winner" in verdict(summary) and "too few launches for an interval; measure" in verdict(summary)


def test_references_share_precision_and_levers(tmp_path: Path) -> None:
    compiled = {"compile": "on"}
    plan: Plan = [
        (made_case("single", 1, 64), [100.0], []),
        (made_case("single", 1, 64, settings=compiled), [200.0], []),
        (made_case("single", 1, 64, precision="fp32"), [50.0], []),
        (made_case("ddp", 2, 64), [150.0], []),
        (made_case("ddp", 2, 64, settings={**compiled, "bucket_cap_mb": "5"}), [300.0], []),
        (made_case("ddp", 2, 64, precision="fp32"), [80.0], []),
    ]
    (summary,) = summarise(read_run(write_run(tmp_path, plan)))
    ratios = [row.versus_single.interval.value for row in summary.rows if row.versus_single]
    assert ratios == pytest.approx([1.5, 1.5, 1.6])


def test_a_cpu_run_ranks_no_replica_and_says_what_it_is(tmp_path: Path) -> None:
    data = read_run(cpu_run(tmp_path))
    (summary,) = summarise(data)
    rows = by_title(summary)
    assert rows["dp, 2 devices"].excluded == "emulated"
    against_replicas = rows["ddp, 2 devices"].versus_dp
    assert against_replicas is not None and against_replicas.basis == EMULATED
    assert " dp at the" not in verdict(summary)  # no conclusion rests on host replicas
    assert rows["dp, 2 devices"].memory == (2**29, None)
    assert (
        banner(data) == "CPU run: it shows the suite working, not GPU speed; dp: host replicas (emulated), not ranked."
    )
    real = tuple(launch for launch in data.launches if not launch.emulated)
    assert banner(replace(data, launches=real)) == "CPU run: it shows the suite working, not GPU speed."
    assert "Emulated by host replicas: correctness only, not ranked" in [item.title for item in checks(data, [summary])]


def test_oversubscribed_cases_are_not_ranked(tmp_path: Path) -> None:
    data = read_run(write_run(tmp_path, [(made_case("ddp", 2, 64, devices=(0, 0)), [10.0, 11.0], [])]))
    (summary,) = summarise(data)
    assert verdict(summary) == "Nothing can be ranked: every case is left out (oversubscribed)."
    assert summary.fastest is None and "Oversubscribed" in (banner(data) or "")


def test_checks_of_a_gpu_run(tmp_path: Path) -> None:
    data = read_run(gpu_run(tmp_path))
    assert banner(data) is None
    data = replace(data, problems=("x: set aside",), run=made_run())
    found = {check.title.split(":")[0]: check.seen for check in checks(data, summarise(data))}
    assert list(found) == [
        "Not read and set aside", "The run has no recorded end", "About the whole run", "Parity missed",
        "Parity not known", "Did not end ok", "Too few launches for a useful interval", "Skipped",
    ]  # fmt: skip
    assert found["Parity missed"][0].startswith("resnet50: fsdp1, 4 devices, batch 256: parity error 9.0e-01")
    assert len(found["Did not end ok"]) == 2, "a skip is data, not a failure"
    (few,) = found["Too few launches for a useful interval"]
    assert few.endswith('ddp (hook <img src=x onerror=alert(1)></script>$x_1$ 模型 & "quotes"): 1 launch: no interval')


def parity_of(case: Case, **changes: Any) -> tuple[Case, dict[str, Any]]:
    return replace(case, purpose="parity", precision="fp32", global_batch_size=8), changes


@pytest.mark.parametrize("status", ["error", "timeout", "oom"])
def test_a_parity_check_that_did_not_end_ok_leaves_its_case_out(tmp_path: Path, status: str) -> None:
    slow, fast = made_case("single", 1, 64), made_case("ddp", 2, 64)
    plan: Plan = [(slow, [100.0, 101.0], []), (fast, [190.0, 191.0], [])]
    data = read_run(
        write_run(
            tmp_path,
            plan,
            parity=[(replace(slow, precision="fp32"), 1e-7)],
            failed=[parity_of(fast, status=status, reason="x")],
        )
    )
    (summary,) = summarise(data)
    assert by_title(summary)["ddp, 2 devices"].excluded == "parity unknown"
    assert [row.title for row in summary.ranked] == ["single, 1 device"]
    assert verdict(summary).endswith("Left out, as their parity check did not end ok: ddp, 2 devices.")
    assert [check.seen for check in checks(data, [summary]) if check.title.startswith("Parity not known")] == [
        ("resnet50: ddp, 2 devices: x",)
    ]


def test_without_any_parity_check_cases_are_ranked_with_a_doubt(tmp_path: Path) -> None:
    data = read_run(write_run(tmp_path, [(made_case("ddp", 2, 64), [190.0, 191.0], [])]))
    (summary,) = summarise(data)
    assert summary.fastest is not None and summary.fastest.excluded is None
    assert verdict(summary).endswith("Whether it trains what one device trains is not known: no parity check.")
    assert "resnet50: ddp: not checked" in [item for check in checks(data, [summary]) for item in check.seen]


def test_parity_says_where_it_was_checked_in_double(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, made_run(), METRICS)
    for position, (strategy, note) in enumerate((("ddp", "in float64, where rounding cannot grow"), ("fsdp", None))):
        case = made_case(strategy, 2, 64, precision="fp32")
        writer.add(made_launch(case, 0, 2 * position), timed(made_launch(case, 0, 0), 100.0))
        check = made_launch(replace(case, purpose="parity"), 0, 2 * position + 1)
        writer.add(check, [sample(check, "parity_error", 1e-12, note=note)])
    (summary,) = summarise(read_run(writer.folder))
    assert [(row.parity.status, row.parity.double) for row in summary.rows] == [("ok", True), ("ok", False)]


def test_parameters_that_nobody_trains_are_told_once(tmp_path: Path) -> None:
    """By the metric's own words: what it notes is what is looked for."""
    found = ParityTrace(error=1e-12, lossy=False, double=True, unused_parameters=("a.weight", "a.bias"))
    note = next(iter(parity_error(Trace(case=made_case("ddp", 2, 64), parity=found)))).note
    writer = RunWriter(tmp_path, made_run(), METRICS)
    for position, strategy in enumerate(("ddp", "fsdp")):
        case = made_case(strategy, 2, 64, precision="fp32")
        writer.add(made_launch(case, 0, 2 * position), timed(made_launch(case, 0, 0), 100.0))
        check = made_launch(replace(case, purpose="parity"), 0, 2 * position + 1)
        writer.add(check, [sample(check, "parity_error", 1e-12, note=note)])
    data = read_run(writer.folder)
    (seen,) = [check.seen for check in checks(data, summarise(data)) if "not reached by the loss" in check.title]
    assert seen == ("resnet50: ddp / resnet50: fsdp: no gradient for 2 of the parameters, e.g. a.weight, a.bias",)


def test_cases_that_share_a_reason_are_listed_together(tmp_path: Path) -> None:
    why = "2 parameters got no gradient; give --strategies ddp:find_unused_parameters=on"
    failed = [(made_case("ddp", count, 64), {"status": "skipped", "reason": why}) for count in (2, 4)]
    failed.append((made_case("fsdp", 2, 64), {"status": "skipped", "reason": "other"}))
    data = read_run(write_run(tmp_path, [], failed=failed))
    (seen,) = [check.seen for check in checks(data, summarise(data)) if check.title == "Skipped"]
    assert seen == (f"resnet50: ddp, 2 devices / resnet50: ddp, 4 devices: {why}", "resnet50: fsdp, 2 devices: other")


def test_a_cpu_run_says_what_a_device_is(tmp_path: Path) -> None:
    data = read_run(cpu_run(tmp_path))
    assert cpu_share(data) is None, "older runs recorded no threads"

    def told(threads: int, strategies: set[str]) -> str:
        launches = [replace(of, threads_per_worker=threads) for of in data.launches if of.strategy in strategies]
        return cpu_share(replace(data, launches=tuple(launches))) or ""

    assert told(8, {"single", "ddp"}).endswith(
        "the cores over the run's devices: single here is 8 threads of 16 cores."
    )
    assert told(1, {"ddp"}).endswith("a device here is 1 thread of 16 cores.")
    assert cpu_share(replace(data, run=replace(data.run, device_type="cuda"))) is None


def test_an_interval_of_more_than_a_factor_of_10_is_unknown() -> None:
    assert [ends_text(1.0, high, 2) for high in (10.0, 10.1)] == ["1.000 to 10.00", "unknown (2 launches)"]
    assert ends_text(-1.0, 5.0, 3) == "unknown (3 launches)" and ends_text(0.0, 0.0, 3) == "0 to 0"
    assert ends_text(None, None, 1) == "too few launches"
    assert times(Interval(value=1.5, low=0.1, high=22.0), 2) == "1.50 times (interval unknown, 2 launches)"
    assert times(Interval(value=1.5, low=1.0, high=2.0), 2) == "1.50 times (1.00 to 2.00)"


def test_words() -> None:
    assert strategy_label("dp", (NameValue(name="loss_on", value="replica"),)) == "dp (loss on replica)"
    assert [number(value) for value in (1234.5, 82.6, 0.5, 0.0, 999.99)] == ["1,234", "82.60", "0.5000", "0", "1000"]


def test_other_arithmetic_is_another_comparison_although_the_precision_is_the_same(tmp_path: Path) -> None:
    """FSDP's own mixed precision computes in bf16 where `single` at fp32 does not."""
    writer = RunWriter(tmp_path, made_run(), METRICS)
    for position, (strategy, computes_in) in enumerate((("single", "fp32"), ("ddp", "fp32"), ("fsdp", "bf16"))):
        case = made_case(strategy, 1 if strategy == "single" else 2, 64, precision="fp32")
        launch = made_launch(case, 0, position, computes_in=computes_in)
        writer.add(launch, timed(launch, 100.0 * (position + 1)))
    (summary,) = summarise(read_run(writer.folder))
    against = {row.result.axes.strategy: row.versus_single is not None for row in summary.rows}
    assert against["ddp"] and not against["fsdp"]


def test_a_check_that_fp32_cannot_have_leaves_the_one_of_its_own_precision(tmp_path: Path) -> None:
    """As of a kernel of attention that exists for halves alone."""
    writer = RunWriter(tmp_path, made_run(), METRICS)
    case = made_case("ddp", 2, 64)
    writer.add(made_launch(case, 0, 0), timed(made_launch(case, 0, 0), 100.0))
    own = made_launch(replace(case, purpose="parity"), 0, 1)
    writer.add(own, [sample(own, "parity_error", 0.01, note="lossy levers round on purpose, so there is no verdict")])
    exact = made_launch(replace(case, purpose="parity", precision="fp32"), 0, 2, status="skipped", reason="no kernel")
    writer.add(exact, [])
    (summary,) = summarise(read_run(writer.folder))
    (row,) = summary.rows
    assert (row.parity.status, row.parity.error) == ("no verdict", 0.01)
