"""How much GPU 0 should take: balanced_dp over the shares of its first device, beside dp and ddp.

A sweep on all devices, whatever `--strategies` says: which share is most even, what it costs in
speed, how much larger the largest batch becomes. It answers the memory questions on GPUs only.
"""

from __future__ import annotations

from dataclasses import replace

from bench.balance import share_samples
from bench.planning.plan import LOSS_ON_REPLICA, Plan
from bench.pytest_plugin import Measure
from bench.schema import Case, NameValue

SWEEP = True
SHARES = (0.0, 0.05, 0.10, 0.15)


def cases(plan: Plan) -> list[Case]:
    """Every share of every workload's micro-batch, the even one and auto, beside dp (both losses) and ddp."""
    found = []
    for name in plan.workloads:
        batches = plan.batches(name, len(plan.devices))
        for batch in batches:
            found += _of(plan, name, batch)
        if len(batches) == 1 and plan.machine.device_type == "cuda":
            found += _half(plan.case(name, "balanced_dp", len(plan.devices), batches[0]))
    return found


def _of(plan: Plan, name: str, batch: int) -> list[Case]:
    count = len(plan.devices)
    balanced, dp, ddp = (plan.case(name, strategy, count, batch) for strategy in ("balanced_dp", "dp", "ddp"))
    micro = balanced.micro_batch_size
    shares = dict.fromkeys([*(share_samples(micro, count, share) for share in SHARES), micro // count])
    others = [dp, dp.with_settings(LOSS_ON_REPLICA), ddp]
    return [*(_at(balanced, str(share)) for share in shares), _at(balanced, "auto"), *others]


def _half(case: Case) -> list[Case]:
    """Half the batch at its even share: only another batch tells what GPU 0 gathers of each sample from what it holds.

    On CPU there is no such memory, so it is not asked for.
    """
    half = case.micro_batch_size // 2
    if half < case.num_devices or case.num_devices == 1:
        return []
    return [_at(replace(case, global_batch_size=half * case.accumulation_steps), str(half // case.num_devices))]


def _at(case: Case, share: str) -> Case:
    return case.with_settings(NameValue(name="gpu0_bsz", value=share))


def test_training_step(measure: Measure) -> None:
    """One launch: seconds per training step."""
    measure()


def test_parity(parity: Measure) -> None:
    """The strategy trains what one device trains."""
    parity()
