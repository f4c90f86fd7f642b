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
    print(output)
    ((ratio, low, high),) = re.findall(r"ratio +([\d.]+), 95 % interval ([\d.]+) to ([\d.]+)", output)
    assert float(low) < float(ratio) < float(high)


@pytest.mark.slow
def test_watcher_cost_prints_a_ratio_with_its_interval() -> None:
    output = printed("watcher_cost", "--pairs", "4", "--round-seconds", "0.3")
    print(output)
    ((ratio, low, high),) = re.findall(r"ratio +([\d.]+), 95 % interval ([\d.]+) to ([\d.]+)", output)
    assert float(low) < float(ratio) < float(high)
    (read,) = re.findall(r"read +([\d.]+) times a second", output)
    assert float(read) > 0  # the watched rounds were watched
