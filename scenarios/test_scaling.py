"""How each strategy scales: 1 to all devices, at one global batch (strong) and at one batch per device (weak).

A sweep of the strategies of `--strategies` beside `single`, whose time on one device is what theirs is held against.
`--global-batch-size` gives the batches of strong scaling, `--batch-per-device` those of weak scaling.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from bench import workloads
from bench.planning.options import StrategyChoice
from bench.planning.plan import Plan
from bench.pytest_plugin import Measure
from bench.schema import Case

SWEEP = True
BASELINE = StrategyChoice(name="single")
ALL_COUNTS_TO = 4
"""Every number of devices up to here is measured; beyond it powers of two, and all devices."""
MOST_TIMES_USUAL = 2
"""A batch that all counts divide may be so many times the usual one: 24 samples are none of a batch of 8."""


def cases(plan: Plan) -> list[Case]:
    """Every strategy at every number of devices, of every workload, beside `single` at each batch that is needed."""
    counts = device_counts(len(plan.devices))
    choices = [choice for choice in plan.strategies if choice.name != BASELINE.name]
    ways = [(BASELINE, 1), *((choice, count) for choice in choices for count in counts)]
    found: list[Case] = []
    for name in plan.workloads:
        for batch in strong_batches(plan, name):
            found += [case for choice, count in ways for case in plan.placements(name, choice, count, batch)]
        for batch in per_device_batches(plan, name):
            found += [case for choice, count in ways for case in plan.placements(name, choice, count, batch * count)]
    return list(dict.fromkeys(found))


def device_counts(total: int) -> list[int]:
    """All numbers of devices up to 4, beyond that powers of two, and `total` itself."""
    return sorted({*range(1, min(total, ALL_COUNTS_TO) + 1), *_powers(total), total})


def _powers(total: int) -> list[int]:
    return [1 << power for power in range(total.bit_length()) if 1 << power <= total]


def strong_batches(plan: Plan, name: str) -> list[int]:
    """The global batches of strong scaling: those that were given, else one that every count divides.

    That is the multiple nearest to the workload's usual batch on all devices, if it is at most twice that; else
    one that the powers of two and all devices divide, or all devices alone. The counts between are skipped then, by
    strategies that need equal shares.
    """
    if plan.global_batch_sizes:
        return list(plan.global_batch_sizes)
    total = len(plan.devices)
    choices = (device_counts(total), [*_powers(total), total], [total])
    return list(dict.fromkeys(_divisible(plan, usual, choices) for usual in plan.batches(name, total)))


def _divisible(plan: Plan, usual: int, choices: Sequence[Sequence[int]]) -> int:
    batch = usual
    for counts in choices:
        unit = math.lcm(*counts) * _accumulation_steps(plan)
        batch = max(1, (2 * usual + unit) // (2 * unit)) * unit  # rounded to the nearest multiple
        if batch <= MOST_TIMES_USUAL * usual:
            break
    return batch


def per_device_batches(plan: Plan, name: str) -> list[int]:
    """The batches per device of weak scaling: those that were given, else the workload's own.

    A workload that declares a global batch gives each of all devices its part of that, in whole micro-batches.
    """
    if plan.batches_per_device:
        return list(plan.batches_per_device)
    size, steps = workloads.registry.get(name)(plan.size).size, _accumulation_steps(plan)
    batch = size.batch_per_device or (size.global_batch_size or 0) // len(plan.devices)
    return [max(1, batch // steps) * steps]


def _accumulation_steps(plan: Plan) -> int:
    return plan.case(plan.workloads[0], BASELINE.name, 1, 1).accumulation_steps


def test_training_step(measure: Measure) -> None:
    """One launch: seconds per training step."""
    measure()


def test_parity(parity: Measure) -> None:
    """The strategy trains what one device trains."""
    parity()
