"""A made-up sweep of GPU 0's share on 4 GPUs: GPU 0 holds 12 GiB besides its samples, the others 8, a sample 0.2."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench.analysis.estimates import estimate
from bench.recording.reader import read_run
from bench.recording.writer import RunWriter
from bench.schema import Device
from tests.recording.made_up import METRICS, START, made_case, made_launch, made_run, sample, timed, timeline, watched

SHARES = {"0": (0, 86, 85, 85), "16": (16, 80, 80, 80), "26": (26, 77, 77, 76), "40": (40, 72, 72, 72),
          "64": (64, 64, 64, 64), "auto": (49, 69, 69, 69)}  # fmt: skip


def peaks(sizes: tuple[int, ...]) -> list[float]:
    """GiB by device."""
    return [(8.0 if device else 12.0) + 0.2 * size for device, size in enumerate(sizes)]


def sweep_run(results: Path, device_type: str = "cuda") -> Path:
    """Six shares beside both placements of dp and ddp, two launches each; on CPU without peaks, and emulated."""
    cpu: dict[str, Any] = {"device_type": "cpu", "size": "quick", "precision": "fp32"} if device_type == "cpu" else {}
    cases = [(made_case("balanced_dp", 4, 256, settings={"gpu0_bsz": share}, **cpu), sizes, 2400.0 + 9 * sizes[0])
             for share, sizes in SHARES.items()]  # fmt: skip
    even = (64, 64, 64, 64)
    cases += [
        (made_case("dp", 4, 256, **cpu), even, 2990.0),
        (made_case("dp", 4, 256, settings={"loss_on": "replica"}, **cpu), even, 3080.0),
        (made_case("ddp", 4, 256, **cpu), even, 4650.0),
    ]
    run = made_run(run_id="20261130T010000Z-ef56", device_type=device_type)
    if cpu:
        run = replace(run, devices=tuple(Device(index=i, name="AMD EPYC 9654") for i in range(4)))
    writer = RunWriter(results, run, METRICS)
    for position in range(2 * len(cases)):
        case, sizes, rate = cases[position % len(cases)]
        text = "auto took gpu0_bsz 49: 21.8 GiB on each device" if case.setting("gpu0_bsz") == "auto" else None
        launch = made_launch(case, position // len(cases), position, run_id=run.run_id, chunk_sizes=sizes, balance=text)
        gib = peaks(sizes) if not cpu else [0.5 if index == 0 else None for index in range(4)]
        samples = timed(launch, rate * (1 + 0.004 * launch.launch), gib) + watched(launch, gib)
        if text and not cpu:
            samples += [sample(launch, "predicted_peak_bytes", (value + 0.3) * 2**30, device_index=index)
                        for index, value in enumerate(gib) if value is not None]  # fmt: skip
        writer.add(launch, samples, timeline(launch, seconds=5.0))
    data = read_run(writer.folder)
    writer.finish(estimate(data.samples, data.launches, METRICS), START + timedelta(minutes=30))
    return writer.folder
