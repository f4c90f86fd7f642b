"""Does a 95 % interval hold in 95 of 100? By simulation, for few launches and several ways to make one.

    python -m tests.benchmarks.coverage [--simulated 20000]

Noise as on a shared machine: rounds of a launch spread by 7 %, upwards, launches by 5 %. `t on logarithms` is what the
suite reports, for the estimate of a case and (Welch) for the ratio of two; beside it a percentile bootstrap over
launches, and the same t over all rounds, as if rounds of one launch were independent.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

import numpy as np

from bench.analysis.intervals import mean_interval, ratio_interval
from tests.analysis.test_coverage import OF_LAUNCHES, OF_ROUNDS, ROUNDS, launches, true_value

COUNTS = (2, 3, 6, 12)
RESAMPLES = 400


def bootstrap_holds(noise: np.random.Generator, values: Sequence[float], target: float) -> bool:
    """Whether a percentile bootstrap of the mean of logarithms encloses the target."""
    logs = np.log(values)
    means = noise.choice(logs, size=(RESAMPLES, len(logs))).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return bool(low <= math.log(target) <= high)


def rounds_hold(noise: np.random.Generator, count: int) -> bool:
    """Whether t over all rounds of `count` launches encloses the true value, 1."""
    levels = noise.lognormal(0, OF_LAUNCHES, size=count)
    rounds = (levels[:, None] * noise.lognormal(0, OF_ROUNDS, size=(count, ROUNDS))).ravel()
    return mean_interval(rounds.tolist()).contains(1.0) is True


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulated", type=int, default=20_000, metavar="N")
    simulated = parser.parse_args(arguments).simulated
    noise, target = np.random.default_rng(0), true_value()
    print(f"{simulated} simulations, {ROUNDS} rounds a launch; share of intervals that hold the true value, in %")
    print("launches  t on logarithms  ratio (Welch)  bootstrap over launches  t over all rounds")
    for count in COUNTS:
        held = [0, 0, 0, 0]
        for _ in range(simulated):
            values = launches(noise, count)
            held[0] += mean_interval(values).contains(target) is True
            held[1] += ratio_interval(launches(noise, count, middle=1.1), values).contains(1.1) is True
            held[2] += bootstrap_holds(noise, values, target)
            held[3] += rounds_hold(noise, count)
        shares = [f"{100 * hits / simulated:.1f}" for hits in held]
        print(f"{count:8d}  {shares[0]:>15s}  {shares[1]:>13s}  {shares[2]:>23s}  {shares[3]:>17s}")


if __name__ == "__main__":
    main()
