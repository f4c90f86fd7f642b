"""Runs on a GPU through the command that a person types, and their tables."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

import bench
from bench.recording.reader import RunData, read_run, read_timeline

ROOT = Path(__file__).parents[2]
STRATEGIES = ("single", "dp", "balanced_dp", "ddp", "fsdp", "fsdp1", "zero1")
TOGETHER = STRATEGIES[1:]

# Each run's options. Together they stay under 6 minutes on one GPU, a launch being some 5 s.
RUNS = {
    "one": (
        f"--devices 1 --workloads mnist_cnn --preset quick --launches 1 --rounds 10 --strategies {','.join(STRATEGIES)}"
    ),
    "twice": (
        "--devices 0,0 --workloads mnist_cnn,bert_small --preset quick --launches 1 --rounds 5 "
        f"--strategies {','.join(TOGETHER)}"
    ),
    "auto": (
        "--devices 0,0 --workloads resnet50 --preset quick --global-batch-size 32 --launches 1 --rounds 5 "
        "--strategies dp,balanced_dp:gpu0_bsz=auto"
    ),
    "compiled": (
        "--devices 1 --workloads resnet50 --preset standard --launches 2 --strategies single --batch-per-device 256 "
        "--levers channels_last=on,compile=model"
    ),
    "bf16": "--devices 1 --workloads resnet50,bert_small --preset standard --launches 2 --strategies single,ddp",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRun:
    """A run that is over: its tables, and what it printed."""

    data: RunData
    cases: pd.DataFrame
    timeline: pd.DataFrame
    output: str
    exit_status: int

    def case(self, workload: str, strategy: str) -> pd.Series:
        """The first case of a workload and a strategy."""
        found = self.cases[(self.cases["workload"] == workload) & (self.cases["strategy"] == strategy)]
        assert len(found), f"no case of {workload} with {strategy}:\n{self.output[-3000:]}"
        return found.iloc[0]


class GpuRuns:
    """`get(name)` makes a run of `RUNS` when it is first asked for."""

    def __init__(self, results: Path, reports: Path) -> None:
        self._results, self._reports = results, reports
        self._done: dict[str, GpuRun] = {}

    def get(self, name: str) -> GpuRun:
        if name not in self._done:
            self._done[name] = self._run(f"gpu-{name}", RUNS[name].split())
        return self._done[name]

    def _run(self, run_id: str, options: list[str]) -> GpuRun:
        command = [sys.executable, "-m", "pytest", "scenarios", "--device-type", "cuda", "--run-id", run_id, *options]
        command += ["--results", str(self._results), "--reports", str(self._reports), "-p", "no:cacheprovider"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=330)
        output = done.stdout + done.stderr
        folder = self._results / run_id
        assert folder.is_dir(), output[-4000:]
        return GpuRun(
            data=read_run(folder),
            cases=bench.load(folder),
            timeline=read_timeline(folder),
            output=output,
            exit_status=done.returncode,
        )
