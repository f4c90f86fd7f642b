"""The whole suite at quick size, through the command a person types, read back as a person would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import psutil
import pytest

import bench

pytestmark = pytest.mark.slow
"""Minutes, which the tests that run after each change do not have."""
ROOT = Path(__file__).parents[1]
WORKLOADS = ("bert_small", "mnist_cnn", "resnet50")
STRATEGIES = ("single", "dp", "balanced_dp", "ddp", "fsdp")
MARK = "DPBENCH_TEST_MARK"


@dataclass(frozen=True)
class QuickRun:
    folder: Path
    results: Path
    reports: Path
    benchmark_json: Path
    output: str
    exit_status: int
    leftovers: list[str]


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> QuickRun:
    """One launch of every case: everything of a quick run but its second launches."""
    folder = tmp_path_factory.mktemp("quick")
    results, reports, benchmark_json = folder / "results", folder / "reports", folder / "benchmark.json"
    mark = uuid.uuid4().hex
    command = [sys.executable, "-m", "pytest", "scenarios", "--device-type", "cpu", "--launches", "1", "--rounds", "3"]
    command += ["--results", str(results), "--reports", str(reports), f"--benchmark-json={benchmark_json}"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | {MARK: mark}, capture_output=True, text=True, timeout=900)
    (run,) = results.iterdir()
    return QuickRun(
        folder=run,
        results=results,
        reports=reports,
        benchmark_json=benchmark_json,
        output=done.stdout + done.stderr,
        exit_status=done.returncode,
        leftovers=_marked(mark, seconds=5),
    )


def _marked(mark: str, seconds: float) -> list[str]:
    """Processes that still carry the run's mark, after they had `seconds` to go."""

    def carries(process: psutil.Process) -> bool:
        try:
            return process.environ().get(MARK) == mark
        except (psutil.Error, OSError):
            return False

    _, alive = psutil.wait_procs([p for p in psutil.process_iter() if carries(p)], timeout=seconds)
    return [f"{process.pid} {process.name()}" for process in alive]


def test_it_ends_well_and_says_where_everything_is(quick: QuickRun) -> None:
    assert quick.exit_status == 0, quick.output[-4000:]
    (page,) = quick.reports.iterdir()
    assert str(page) in quick.output and str(quick.folder) in quick.output
    assert "[51/51]" not in quick.output and "[34/34]" in quick.output  # 17 cases, a launch and a check each
    assert quick.leftovers == []


def test_every_case_is_ok_and_trains_what_one_device_trains(quick: QuickRun) -> None:
    table = bench.load(quick.results)
    cases = {(row.workload, row.strategy) for row in table.itertuples()}
    assert cases == {(workload, strategy) for workload in WORKLOADS for strategy in STRATEGIES}
    assert set(table["status"]) == {"ok"} and len(table) == 17
    assert (table["parity_error"] < 1e-4).all() and set(table["parity_status"]) == {"ok"}
    # Twins of bert_small with the loss on each replica.
    assert (table["settings"] == "loss_on:replica").sum() == 2


def test_rows_say_what_was_run(quick: QuickRun) -> None:
    table = bench.load(quick.results).set_index("case_id")
    mnist = table.loc["mnist_cnn-ddp-2x-b128-fp32"]
    assert (mnist["data"], mnist["data_source"]) == ("real", "MNIST subset, 5,000 real images (shipped)")
    assert list(mnist["chunk_sizes"]) == [64, 64] and mnist["world_size"] == 2
    assert list(table.loc["mnist_cnn-balanced_dp-2x-b128-fp32", "chunk_sizes"]) == [32, 96]
    assert set(table[table["emulated"]]["strategy"]) == {"dp", "balanced_dp"}
    assert set(table["device_type"]) == {"cpu"} and not table["oversubscribed"].any()
    # Nothing claims to be GPU memory where there is no GPU.
    assert not any(name.startswith("peak_allocated_bytes") and table[name].notna().any() for name in table)


def test_plain_pandas_reads_the_tables_and_the_figures_agree(quick: QuickRun) -> None:
    samples = pd.read_parquet(quick.folder / "samples.parquet")
    launches = pd.read_parquet(quick.folder / "launches.parquet")
    assert len(launches) == 34 and set(launches["status"]) == {"ok"}
    assert (launches["threads_per_worker"] >= 1).all()
    parts = launches[["startup_seconds", "warmup_seconds", "measured_seconds", "teardown_seconds"]].sum(axis=1)
    assert ((parts - launches["wall_seconds"]).abs() < 0.01).all()
    one = samples[(samples["case_id"] == "resnet50-ddp-2x-b8-fp32")].pivot_table(
        index="round_index", columns="metric", values="value"
    )
    # 8 images a step over both ranks.
    assert (one["samples_per_second"] * one["step_seconds"] - 8).abs().max() < 1e-9
    assert len(one) == 3
    bert = samples[(samples["case_id"] == "bert_small-single-1x-b8-fp32")].pivot_table(
        index="round_index", columns="metric", values="value"
    )
    assert (bert["tokens_per_second"] / bert["samples_per_second"] - 64).abs().max() < 1e-9


def test_pytest_benchmark_holds_the_same_seconds_per_step(quick: QuickRun) -> None:
    samples = pd.read_parquet(quick.folder / "samples.parquet")
    steps = samples[samples["metric"] == "step_seconds"].groupby("case_id")["value"].apply(list)
    for entry in json.loads(quick.benchmark_json.read_text())["benchmarks"]:
        case_id = entry["extra_info"]["case_id"]
        assert entry["stats"]["data"] == pytest.approx(steps[case_id])
        assert entry["group"] in WORKLOADS and f"{case_id}-launch0" in entry["name"]
    listed = subprocess.run(
        [sys.executable, "-m", "pytest_benchmark", "compare", str(quick.benchmark_json)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert listed.returncode == 0 and "resnet50-fsdp-2x-b8-fp32" in listed.stdout
