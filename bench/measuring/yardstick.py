"""What a run's step times are held against: the FLOPs of a step, the devices' names, their matrix products.

Each is found once a run, in launches of its own, and put into the traces of the timed launches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from bench import strategies
from bench.measuring.flops import FlopCount, count_flops
from bench.measuring.launch import LaunchResult
from bench.measuring.launcher import Launcher
from bench.measuring.products import ProductJob, Products, measure_products
from bench.measuring.tasks import Job
from bench.schema import Case, Device


def computes_in(case: Case) -> str:
    """The precision of most of a case's arithmetic."""
    return strategies.registry.get(case.strategy).computes_in(case)


class Yardstick:
    """Measures what the metrics of plausibility need. `devices`: every device of the machine, by its ordinal."""

    def __init__(self, launcher: Launcher, devices: Sequence[Device]) -> None:
        self._launcher, self._names = launcher, [device.name for device in devices]
        self._counts: dict[tuple[str, str, str | None], FlopCount] = {}
        self.products = Products()

    def multiply(self, cases: Iterable[Case]) -> Products:
        """Measure matrix products on the devices and in the precisions of these cases."""
        cases = list(cases)
        if cases:
            job = ProductJob(
                device_type=cases[0].device_type,
                devices=tuple(sorted({device for case in cases for device in case.devices})),
                precisions=tuple(sorted({computes_in(case) for case in cases})),
            )
            self.products = measure_products(self._launcher, job)
        return self.products

    def count(self, job: Job) -> FlopCount:
        """FLOPs of a sample of the job's workload, counted when first asked for."""
        key = (job.case.workload, job.case.size, job.case.data)
        if key not in self._counts:
            self._counts[key] = count_flops(self._launcher, job)
        return self._counts[key]

    def held_against(self, result: LaunchResult, job: Job) -> LaunchResult:
        """The launch's result, its trace with all that its figures are held against; as it is without a trace."""
        if result.trace is None:
            return result
        case, flops = job.case, self.count(job)
        per_step = None if flops.per_sample is None else flops.per_sample * case.global_batch_size
        trace = replace(
            result.trace,
            flops_per_step=per_step,
            flops_unknown=flops.unknown,
            device_names=tuple(self._names[device] for device in dict.fromkeys(case.devices)),
            matmul_flops_per_second=self.products.flops_per_second(case.devices, computes_in(case)),
            matmul_unknown=self.products.problem,
            computes_in=computes_in(case),
        )
        return replace(result, trace=trace)
