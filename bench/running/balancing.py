"""`balanced_dp:gpu0_bsz=auto`: two short probe launches, a model of the memory, and the split that evens it out.

The workers of an auto case get the case with a number in place of `auto`; its rows keep the
auto case's id, with the split that was used and the reason for it in the column `balance`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from bench import strategies
from bench.balance import CannotTell, Choice, Probe, choose, fit, sizes_text, split_sizes
from bench.measuring.launch import LaunchResult, RoundPlan
from bench.measuring.steady import WarmupRule
from bench.measuring.tasks import Job
from bench.schema import Case, NameValue
from bench.strategies.balanced_dp import AUTO, GPU0_BSZ, BalancedDP

PROBE_PLAN = RoundPlan(rounds=2, round_seconds=0.0, warmup=WarmupRule(max_rounds=3, max_seconds=5.0))
"""Few steps: a peak of the allocator repeats itself, only a time would need many."""

TimeProbe: TypeAlias = Callable[[Job], LaunchResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """How a case is to be run.

    case: what the workers get; balance: why that split, None where auto was not asked for;
    failed: how the launch ends without being tried, where a probe did not end well.
    """

    case: Case
    balance: str | None = None
    predicted_peak_bytes: tuple[float, ...] = ()
    failed: LaunchResult | None = None

    def complete(self, result: LaunchResult) -> tuple[LaunchResult, str | None]:
        """The launch's result with the prediction in its trace, and the text for its row, with what was measured."""
        if result.trace is None or not self.predicted_peak_bytes:
            return result, self.balance
        trace = replace(result.trace, predicted_peak_bytes=self.predicted_peak_bytes)
        measured = sizes_text([device.peak_allocated_bytes for device in trace.devices])
        return replace(result, trace=trace), f"{self.balance}; measured {measured}"


class Balancer:
    """Settles auto cases, each once: what was chosen is kept for the later launches of the run."""

    def __init__(self, time_probe: TimeProbe) -> None:
        self._time_probe = time_probe
        self._chosen: dict[str, Settled] = {}

    def settle(self, job: Job) -> Settled:
        """How the job's case is to be run; launches probes where it is an auto case on CUDA.

        A case without `auto` comes back as it is. Where there is no memory to read, the default
        share is used, and `balance` says so.
        """
        case = job.case
        if case.strategy != BalancedDP.name or case.setting(GPU0_BSZ.name) != AUTO:
            return Settled(case=case)
        if str(case) not in self._chosen:
            blind = _no_probe(case)
            settled = _by_default(case, blind) if blind is not None else self._probed(job)
            if settled.failed is not None:
                return settled
            self._chosen[str(case)] = settled
        return self._chosen[str(case)]

    def _probed(self, job: Job) -> Settled:
        case = job.case
        probes = self._probes(job)
        if isinstance(probes, LaunchResult):
            return Settled(case=case, failed=probes, balance=probes.outcome.reason)
        seen = "probes " + " and ".join(probe.text for probe in probes)
        try:
            choice: Choice = choose(fit(probes), case.micro_batch_size)
        except CannotTell as error:
            return _by_default(case, f"{seen}; {error}")
        return Settled(
            case=_with_share(case, choice.gpu0_bsz),
            balance=f"{seen}; {choice.text}",
            predicted_peak_bytes=choice.predicted_peak_bytes,
        )

    def _probes(self, job: Job) -> list[Probe] | LaunchResult:
        """The micro-batch at the default share, and half of it at the even one; halved until both fit.

        A probe's result instead where one did not end well, with a reason that names it.
        """
        micro_batch, num_devices = job.case.micro_batch_size, job.case.num_devices
        while True:
            half = micro_batch // 2
            splits = ((micro_batch, micro_batch // (2 * num_devices)), (half, half // num_devices))
            found = []
            for batch, gpu0_bsz in splits:
                result = self._time_probe(replace(job, case=_probe_case(job.case, batch, gpu0_bsz)))
                if result.trace is None or result.outcome.status != "ok":
                    break
                peaks = tuple(device.peak_allocated_bytes for device in result.trace.devices)
                sizes = tuple(split_sizes(batch, num_devices, gpu0_bsz))
                found.append(Probe(chunk_sizes=sizes, peak_bytes=peaks))
            else:
                return found
            # Below that a probe would leave a device without a sample, and so without a replica.
            if result.outcome.status != "oom" or half < 2 * num_devices:
                return _named(result, batch, gpu0_bsz)
            micro_batch = half


def _no_probe(case: Case) -> str | None:
    """Why probes could not tell a split, None where they can."""
    if case.purpose == "parity":
        return "a parity check runs at the default share"
    if case.num_devices == 1:
        return "one device takes all samples"
    if case.device_type == "cpu":
        return "on CPU there is no device memory to read"
    if case.oversubscribed:
        return "a device is listed more than once, and its memory cannot be told apart"
    if case.micro_batch_size < 2 * case.num_devices:
        return f"{case.micro_batch_size} samples over {case.num_devices} devices are too few for two different probes"
    return None


def _by_default(case: Case, why: str) -> Settled:
    """The default share, said in so many words."""
    strategy = strategies.registry.get(case.strategy)
    assert isinstance(strategy, BalancedDP)
    share = strategy.gpu0_bsz(case)
    sizes = list(strategy.chunk_sizes(case))
    return Settled(case=_with_share(case, share), balance=f"{why}; the default was used: gpu0_bsz {share}, {sizes}")


def _with_share(case: Case, gpu0_bsz: int) -> Case:
    """The case with a number in place of `auto`."""
    return case.with_settings(NameValue(name=GPU0_BSZ.name, value=str(gpu0_bsz)))


def _probe_case(case: Case, micro_batch: int, gpu0_bsz: int) -> Case:
    """The same training with another micro-batch and share; accumulation stays, since it holds gradients."""
    return replace(_with_share(case, gpu0_bsz), global_batch_size=micro_batch * case.accumulation_steps)


def _named(result: LaunchResult, micro_batch: int, gpu0_bsz: int) -> LaunchResult:
    """The probe's end as the launch's, with a reason that names the probe."""
    outcome = result.outcome
    probe = f"the probe of gpu0_bsz=auto with gpu0_bsz {gpu0_bsz} of {micro_batch} samples"
    return replace(
        result, trace=None, outcome=replace(outcome, reason=f"{probe} ended as {outcome.status}: {outcome.reason}")
    )
