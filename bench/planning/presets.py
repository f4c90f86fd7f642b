"""Presets: how much is measured, and how long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.measuring.launch import RoundPlan
from bench.measuring.steady import WarmupRule
from bench.measuring.stopping import StoppingRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """How much a run measures.

    launch_seconds: what one launch is expected to take, for the plan that is printed first;
    intermediate_devices: measure at 2, 4, 8 devices too, not only at all of them;
    low_precision: bf16 autocast for workloads that ask for it, where the card has it;
    sweeps: measure every scenario that is a sweep, not only those asked for.
    """

    name: str
    meaning: str
    launches: int
    plan: RoundPlan
    launch_seconds: float
    launch_timeout_seconds: float
    strategies: tuple[str, ...] = ("single", "dp", "balanced_dp", "ddp", "fsdp")
    intermediate_devices: bool = True
    low_precision: bool = True
    sweeps: bool = False


# Quiet rounds take 0.2 x (8 + 12) = 4 s of a launch, noisy ones up to 6 + 6 s; steps above 0.2 s take what they need.
# 0.2 s is some 3,000 times what a control message takes.
STANDARD_ROUNDS = RoundPlan(
    rounds=12,
    round_seconds=0.2,
    warmup=WarmupRule(max_rounds=20, max_seconds=6.0),
    stopping=StoppingRule(max_rounds=30, max_seconds=6.0),
)

PRESETS: Mapping[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            name="quick",
            meaning="small sizes, 3 launches a case: shows that everything works (default on CPU)",
            launches=3,
            plan=RoundPlan(
                rounds=5,
                round_seconds=0.1,
                warmup=WarmupRule(least_rounds=5, max_rounds=10, max_seconds=3.0),
                stopping=StoppingRule(max_rounds=10, max_seconds=1.0),
            ),
            launch_seconds=5.0,
            launch_timeout_seconds=180.0,
            intermediate_devices=False,
            low_precision=False,
        ),
        Preset(
            name="standard",
            meaning="real sizes, 6 launches a case, 1 to all devices, at most about 45 minutes (default on GPU)",
            launches=6,
            plan=STANDARD_ROUNDS,
            launch_seconds=8.0,
            launch_timeout_seconds=300.0,
        ),
        Preset(
            name="full",
            meaning="as standard, with 12 launches a case, ZeRO-1, the older FSDP1, and every sweep",
            launches=12,
            plan=STANDARD_ROUNDS,
            launch_seconds=8.0,
            launch_timeout_seconds=600.0,
            strategies=("single", "dp", "balanced_dp", "ddp", "zero1", "fsdp", "fsdp1"),
            sweeps=True,
        ),
    )
}
