"""The load-balance sweep of a made-up run, against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.analysis.balance import BalanceSummary, balance_summaries, imbalance, more_batches
from bench.analysis.intervals import Interval
from bench.analysis.shares import Memory, ShareRow, sentences
from bench.analysis.spreads import Spread
from bench.recording.reader import RunData, read_run
from bench.recording.writer import RunWriter
from bench.schema import Device
from tests.recording.made_up import METRICS, made_case, made_launch, made_run, sample, timed

GIB = 2**30
# Two GPUs of 40 GiB, 2 of them in use before: GPU 0 holds 4 GiB and 1/8 of every sample of the micro-batch, the
# other 2 GiB, and a sample takes 1/4 where it is. Of 64 samples: 12 + a / 4 against 18 - a / 4, even at a = 12.
SPLITS = {"0": (0, 64), "6": (6, 58), "32": (32, 32), "auto": (12, 52)}
RATES = {"0": 900.0, "6": 950.0, "32": 1045.0, "auto": 990.0}
HALF = (16, 16)


def gib(sizes: tuple[int, int]) -> list[float | None]:
    return [4 + sizes[0] / 4 + sum(sizes) / 8, 2 + sizes[1] / 4]


def device(**changes: Any) -> tuple[Device, ...]:
    made = Device(index=0, name="GPU", memory_bytes=40 * GIB, idle_memory_used_bytes=2 * GIB)
    return tuple(replace(made, index=index, **changes) for index in (0, 1))


def sweep(results: Path, *, half: bool = True, peaks: bool = True, launches: int = 2,
          shares: tuple[str, ...] = tuple(SPLITS), dp: bool = True, ddp: float = 1650.0,
          run: dict[str, Any] | None = None, **axes: Any) -> RunData:  # fmt: skip
    """A run of the shares, beside both placements of dp and ddp, with two equal launches each."""
    cases = [(made_case("balanced_dp", 2, 64, settings={"gpu0_bsz": share}, **axes), SPLITS[share], RATES[share])
             for share in shares]  # fmt: skip
    if half:
        cases.append((made_case("balanced_dp", 2, 32, settings={"gpu0_bsz": "16"}, **axes), HALF, 700.0))
    if dp:
        cases.append((made_case("dp", 2, 64, **axes), (32, 32), 1000.0))
        cases.append((made_case("dp", 2, 64, settings={"loss_on": "replica"}, **axes), (32, 32), 1100.0))
    cases.append((made_case("ddp", 2, 64, **axes), (32, 32), ddp))
    writer = RunWriter(results, made_run(devices=device(), **(run or {})), METRICS)
    for position, (case, sizes, rate) in enumerate(cases * launches):
        chosen = "chosen gpu0_bsz 12" if case.setting("gpu0_bsz") == "auto" else None
        launch = made_launch(case, position // len(cases), position, chunk_sizes=sizes, balance=chosen)
        on_gpu = peaks and case.device_type == "cuda"
        rows = timed(launch, rate, gib(sizes) if on_gpu else ())
        if chosen and on_gpu:
            rows += [sample(launch, "predicted_peak_bytes", 1.02 * value * GIB, device_index=index)
                     for index, value in enumerate(gib(sizes)) if value is not None]  # fmt: skip
        writer.add(launch, rows)
    return read_run(writer.folder)


def only(data: RunData) -> BalanceSummary:
    (summary,) = balance_summaries(data)
    return summary


def by_label(summary: BalanceSummary) -> dict[str, ShareRow]:
    return {row.label: row for row in summary.rows}


def test_rows_of_a_sweep_on_gpus(tmp_path: Path) -> None:
    summary = only(sweep(tmp_path))
    assert [row.label for row in summary.rows] == [
        "gpu0_bsz 0", "gpu0_bsz 6", "gpu0_bsz 32 (even)", "auto: gpu0_bsz 12", "dp", "dp (loss on replica)", "ddp",
    ]  # fmt: skip
    assert (summary.workload, summary.num_devices, summary.global_batch_size, summary.micro_batch_size) == (
        "resnet50", 2, 64, 64
    )  # fmt: skip
    rows = by_label(summary)
    auto = rows["auto: gpu0_bsz 12"]
    assert auto.peak_bytes == (15 * GIB, 15 * GIB) and auto.imbalance == 0
    assert auto.predicted_peak_bytes == pytest.approx((15.3 * GIB, 15.3 * GIB))
    assert (auto.gpu0_samples, auto.share, auto.even, auto.balance) == (12, 12 / 64, False, "chosen gpu0_bsz 12")
    # 20 and 10 GiB, 12 and 18, 13.5 and 16.5; the mean is 15 in each.
    assert rows["gpu0_bsz 32 (even)"].imbalance == pytest.approx(1 / 3)
    assert rows["gpu0_bsz 0"].imbalance == pytest.approx(0.2)
    assert rows["gpu0_bsz 6"].imbalance == pytest.approx(0.1)
    assert summary.model is not None and summary.model.startswith(
        "fixed 4 GiB / 2 GiB, 256 MiB a sample, GPU 0 gathers"
    )


def test_speed_stands_against_the_better_placement_of_dp(tmp_path: Path) -> None:
    summary = only(sweep(tmp_path))
    rows = by_label(summary)
    assert summary.reference == "dp (loss on replica)"
    versus = rows["auto: gpu0_bsz 12"].versus_dp
    assert versus is not None and versus.value == pytest.approx(990 / 1100)
    assert versus.low == pytest.approx(0.9) and versus.high == pytest.approx(0.9)
    assert rows["dp (loss on replica)"].versus_dp is None
    dp, ddp = rows["dp"].versus_dp, rows["ddp"].versus_dp
    assert dp is not None and dp.value == pytest.approx(1000 / 1100)
    assert ddp is not None and ddp.value == pytest.approx(1.5)


def test_largest_batch_of_each_share_by_the_model_of_the_sweep(tmp_path: Path) -> None:
    rows = by_label(only(sweep(tmp_path)))
    # 38 GiB are free. Even: 34 / (1/8 + 1/8) = 136 on GPU 0. At 12 of 64 the other: 36 / (52/64 / 4) = 177.2.
    # At 0 the other: 36 / (1/4) = 144; at 6 of 64 159, of which 15 (14.9) on GPU 0 leave 144 again.
    found = {label: row.largest_batch for label, row in rows.items() if row.largest_batch is not None}
    assert found == {"gpu0_bsz 32 (even)": 136, "auto: gpu0_bsz 12": 177, "gpu0_bsz 0": 144, "gpu0_bsz 6": 159}


def test_sentences_answer_the_three_questions(tmp_path: Path) -> None:
    assert only(sweep(tmp_path)).sentences == (
        "Most even is auto: gpu0_bsz 12: its fullest device lies 0.0% above the mean, with the even share 33.3%.",
        "It runs at 0.900 times the throughput of dp (loss on replica) (95 % interval 0.900 to 0.900).",
        "By a model of these peaks the largest micro-batch is about 177 samples, 1.30 times the 136 of the even share, "
        "which is dp's; the CUDA context and fragmentation take some of both.",
        "auto: gpu0_bsz 12: the prediction was at most 2.0% off the measured peaks.",
        "ddp runs at 1.50 times the throughput of dp (loss on replica), faster than every share: balance only where "
        "DDP cannot be used.",
    )


@pytest.mark.parametrize("changes", [{"launches": 1}, {"ddp": 1045.0}, {"shares": ("0", "6"), "device_type": "cpu"}])
def test_ddp_is_said_to_lead_only_where_that_is_sure(tmp_path: Path, changes: dict[str, Any]) -> None:
    # one launch has no interval; the even share is as fast as 1045; shares of host replicas are no ground
    assert not [text for text in only(sweep(tmp_path, **changes)).sentences if "faster than every share" in text]


def test_without_dp_ddp_leads_by_no_figure(tmp_path: Path) -> None:
    assert only(sweep(tmp_path, dp=False)).sentences[-1].startswith("ddp is faster than every share: balance only")


def test_one_launch_has_no_interval(tmp_path: Path) -> None:
    assert "too few launches for an interval" in only(sweep(tmp_path, launches=1)).sentences[1]


def test_an_interval_that_tells_nothing_is_called_unknown(tmp_path: Path) -> None:
    spread = Spread(value=990.0, low=1.0, high=1e6, launches=(500.0, 1960.0))
    row = replace(by_label(only(sweep(tmp_path)))["auto: gpu0_bsz 12"], samples_per_second=spread,
                  versus_dp=Interval(value=0.9, low=0.001, high=800.0))  # fmt: skip
    memory = Memory(model=None, unknown="why", capacity=(), more_batches="")
    assert list(sentences([row], "dp", memory))[1] == (
        "It runs at 0.900 times the throughput of dp (95 % interval unknown (2 launches))."
    )


def test_one_micro_batch_does_not_tell_how_a_larger_one_grows(tmp_path: Path) -> None:
    summary = only(sweep(tmp_path, half=False))
    assert summary.model is not None and "part of its fixed part" in summary.model
    assert {row.largest_batch for row in summary.rows} == {None}
    assert summary.sentences[2].startswith("How much larger the largest batch becomes cannot be told: all launches had")
    assert summary.sentences[2].endswith("measure another batch too: --global-batch-size 64,32.")


@pytest.mark.parametrize(
    ("batch", "accumulation", "listed"), [(64, 1, "64,32"), (6, 1, "6,2"), (3, 1, "3,6"), (24, 4, "24,8")]
)
def test_the_other_batch_to_measure_is_one_that_two_devices_can_split(
    batch: int, accumulation: int, listed: str
) -> None:
    launch = made_launch(made_case("balanced_dp", 2, batch, accumulation_steps=accumulation), 0, 0)
    assert more_batches(launch) == f"--global-batch-size {listed}"


def test_memory_that_is_not_known_leaves_the_largest_batch_open(tmp_path: Path) -> None:
    data = sweep(tmp_path)
    data = replace(data, run=replace(data.run, devices=device(memory_bytes=None)))
    assert "cannot be told: the memory of a device is not known" in only(data).sentences[2]


def test_without_dp_the_cost_is_not_told(tmp_path: Path) -> None:
    summary = only(sweep(tmp_path, dp=False))
    assert summary.reference is None
    assert summary.sentences[1].startswith("What it costs in speed cannot be told: there is no pair")


def test_on_cpu_it_cannot_tell_and_says_why(tmp_path: Path) -> None:
    summary = only(sweep(tmp_path, device_type="cpu", size="quick", run={"device_type": "cpu"}))
    assert summary.sentences == (
        "Which share is most even, and how much larger the largest batch becomes, cannot be told: on CPU there is no "
        "device memory to read; measure on GPUs.",
        "What a share costs in speed cannot be told: host replicas stand in for devices in balanced_dp and dp "
        "(emulated); ddp is the real thing.",
    )
    assert summary.model is None
    assert {(row.peak_bytes, row.imbalance, row.largest_batch) for row in summary.rows} == {((), None, None)}


def test_peaks_that_are_missing_are_said_to_be(tmp_path: Path) -> None:
    summary = only(sweep(tmp_path, peaks=False))
    assert "cannot be told: no launch has a peak on every device." in summary.sentences[0]
    twice = only(sweep(tmp_path / "twice", peaks=False, devices=(0, 0)))
    assert "on every device; a device is listed more than once." in twice.sentences[0]


def test_a_share_that_ran_out_keeps_its_reason_and_the_others_their_answers(tmp_path: Path) -> None:
    folder = sweep(tmp_path, shares=("0", "6", "auto")).folder
    data = read_run(folder)
    failed = made_launch(
        made_case("balanced_dp", 2, 64, settings={"gpu0_bsz": "32"}), 0, 99, chunk_sizes=(32, 32), status="oom",
        reason="CUDA out of memory",
    )  # fmt: skip
    summary = only(replace(data, launches=(*data.launches, failed)))
    row = by_label(summary)["gpu0_bsz 32 (even)"]
    assert (row.status, row.reason, row.peak_bytes, row.imbalance) == ("oom", "CUDA out of memory", (), None)
    assert row.largest_batch == 136  # by the model of the other shares
    assert summary.sentences[0] == "Most even is auto: gpu0_bsz 12: its fullest device lies 0.0% above the mean."


def test_a_comparison_without_two_splits_is_no_sweep(tmp_path: Path) -> None:
    assert balance_summaries(sweep(tmp_path, shares=("6",))) == ()


def test_imbalance_is_the_largest_over_the_mean() -> None:
    assert imbalance((30.0, 10.0)) == pytest.approx(0.5)
    assert imbalance((10.0, 10.0, 10.0)) == 0
    assert imbalance((30.0, None)) is None and imbalance(()) is None
