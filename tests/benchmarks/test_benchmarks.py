"""The benchmarks run and print what they promise. Their figures are evidence, not a pass or fail."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def printed(module: str, *options: str) -> str:
    command = [sys.executable, "-m", f"tests.benchmarks.{module}", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_ratio(output: str) -> None:
    """It holds one ratio inside its interval."""
    print(output)
    ((ratio, low, high),) = re.findall(r"ratio +([\d.]+), 95 % interval ([\d.]+) to ([\d.]+)", output)
    assert float(low) < float(ratio) < float(high)


@pytest.mark.slow
def test_launch_overhead_prints_both_medians_and_their_ratio() -> None:
    output = printed("launch_overhead", "--launches", "5", "--torchrun", "2")
    print(output)
    ours, theirs = (float(text) for text in re.findall(r"median ([\d.]+) s", output))
    (ratio,) = re.findall(r"ratio of medians +([\d.]+)", output)
    assert float(ratio) == pytest.approx(theirs / ours, rel=0.05)


@pytest.mark.slow
def test_harness_overhead_prints_a_ratio_with_its_interval() -> None:
    output = printed("harness_overhead", "--pairs", "10")
    check_ratio(output)


@pytest.mark.slow
def test_watcher_cost_prints_a_ratio_with_its_interval() -> None:
    output = printed("watcher_cost", "--pairs", "4", "--round-seconds", "0.3")
    check_ratio(output)
    (read,) = re.findall(r"read +([\d.]+) times a second", output)
    assert float(read) > 0  # the watched rounds were watched


@pytest.mark.slow
def test_comparing_runs_prints_time_and_memory_at_each_size() -> None:
    output = printed("comparing_runs", "--runs", "3", "6", "--launches", "12")
    assert [int(runs) for runs in re.findall(r"(\d+) runs", output)] == [3, 6]
    assert all(float(seconds) > 0 for seconds in re.findall(r"([\d.]+) s ", output))


@pytest.mark.slow
def test_false_alarms_are_judged_again_from_the_kept_launches() -> None:
    output = printed("false_alarms", "judge", "docs/evidence/false_alarms.parquet", "--launches", "6")
    told = (ROOT / "docs" / "evidence" / "false_alarms.md").read_text()
    (alarms, of) = re.findall(r"  compare\n    identical code +[\d.]+ % \([^)]*\), (\d+) of (\d+)", output)[0]
    assert f"{alarms} of {of}" in told, "the table tells what the script prints"


@pytest.mark.slow
def test_kept_memory_prints_a_ratio_with_its_interval() -> None:
    output = printed("kept_memory", "--turns", "2", "--cases", "mnist_cnn:single")
    check_ratio(output)
