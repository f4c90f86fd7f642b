import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from bench.analysis.estimates import TOO_FEW, estimate, estimates_of
from bench.recording.columns import arrow_table
from bench.recording.reader import read_run
from bench.schema import Estimate, Launch, Sample
from tests.recording.made_up import METRICS, gpu_run, made_case, made_launch, sample

CASE = made_case("ddp", 2, 64)
LAUNCHES = [made_launch(CASE, index, index) for index in range(3)]


def estimated(samples: Sequence[Sample], launches: Sequence[Launch] = LAUNCHES) -> list[Estimate]:
    frame = arrow_table("samples", samples, metrics=METRICS, file=Path("x")).to_pandas(integer_object_nulls=True)
    return estimate(frame, launches, METRICS)


def rounds(launch: Launch, metric: str, values: Sequence[float]) -> list[Sample]:
    return [sample(launch, metric, value, round_index=index) for index, value in enumerate(values)]


def test_median_of_rounds_then_geometric_mean_of_launches() -> None:
    # medians 2 and 8 (the geometric mean of 4 and 16): geometric mean 4, half-width 12.7062 * ln 2
    samples = rounds(LAUNCHES[0], "step_seconds", [1, 2, 90]) + rounds(LAUNCHES[1], "step_seconds", [4, 16])
    (found,) = estimated(samples)
    assert found.value == pytest.approx(4.0)
    assert found.low == pytest.approx(4.0 / 2**12.706204736174694)
    assert (found.smallest, found.largest, found.launches, found.rounds) == (2.0, 8.0, 2, 5)
    assert found.note is None


def test_a_rate_is_the_batch_over_the_step_time_beside_it() -> None:
    # two rounds of 0.2 and 0.3 s at 128 samples: the mean of the rates, 533.3, would not fit any step time
    steps = rounds(LAUNCHES[0], "step_seconds", [0.2, 0.3])
    rates = rounds(LAUNCHES[0], "samples_per_second", [128 / 0.2, 128 / 0.3])
    of = {found.metric: found.value for found in estimated(steps + rates)}
    step, rate = of["step_seconds"], of["samples_per_second"]
    assert step is not None and rate is not None and step * rate == pytest.approx(128)


def test_one_launch_says_too_few() -> None:
    (found,) = estimated(rounds(LAUNCHES[0], "step_seconds", [1, 2, 3]))
    assert (found.value, found.low, found.high, found.note) == (2.0, None, None, TOO_FEW)


def test_memory_peaks_are_the_largest_launch_per_device() -> None:
    samples = [
        sample(launch, "peak_allocated_bytes", float(10 * device + launch.launch), device_index=device)
        for launch in LAUNCHES for device in (0, 1)
    ]  # fmt: skip
    first, second = estimated(samples)
    assert (first.device_index, first.value, first.low, first.smallest, first.rounds) == (0, 2.0, None, 0.0, 0)
    assert (second.device_index, second.value, second.note) == (1, 12.0, None)


def test_parity_is_the_worst_launch() -> None:
    case = made_case("ddp", 2, 8, precision="fp32", purpose="parity")
    launches = [made_launch(case, index, index) for index in range(2)]
    samples = [sample(launches[0], "parity_error", 1e-7), sample(launches[1], "parity_error", 0.5)]
    (found,) = estimated(samples, launches)
    assert (found.value, found.high) == (0.5, None)


def test_nulls_keep_their_reason_and_failed_launches_do_not_count() -> None:
    absent = [sample(launch, "cpu_percent", None, device_index=1, note="shares one process") for launch in LAUNCHES]
    failed = replace(LAUNCHES[2], status="timeout", reason="x")
    numbers = (2.0, math.inf, 5.0)
    values = [sample(launch, "epoch_seconds", value) for launch, value in zip(LAUNCHES, numbers, strict=True)]
    null, odd = estimated(absent + values, [*LAUNCHES[:2], failed])
    assert (null.value, null.launches, null.note) == (None, 0, "shares one process")
    assert (odd.value, odd.launches) == (2.0, 1)
    assert odd.note == "too few launches; inf is not a finite number"


def test_stored_estimates_are_those_that_were_computed(tmp_path: Path) -> None:
    data = read_run(gpu_run(tmp_path))
    assert isinstance(data.estimates, pd.DataFrame)
    assert estimates_of(data.estimates) == estimate(data.samples, data.launches, METRICS)
