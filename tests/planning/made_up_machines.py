"""Machines that are not here."""

from __future__ import annotations

from typing import Any

from bench.levers import Abilities
from bench.measuring.machine import Machine
from bench.planning.options import RunOptions
from bench.planning.plan import Plan, make_plan
from bench.schema import Device


def cpu(cores: int = 2) -> Machine:
    return Machine(device_type="cpu", devices=tuple(Device(index=i, name="CPU") for i in range(cores)))


def gpus(count: int = 4, *, bf16: bool = True) -> Machine:
    devices = tuple(Device(index=i, name="NVIDIA H200", uuid=f"GPU-{i}") for i in range(count))
    return Machine(device_type="cuda", devices=devices, abilities=Abilities(bf16=bf16), nccl_version=(2, 30, 7))


def plan_of(machine: Machine, **options: Any) -> Plan:
    return make_plan(RunOptions(**options), machine)


def ids(plan: Plan) -> list[str]:
    """Texts of every case of the main comparison."""
    return [str(case) for name in plan.workloads for case in plan.comparison(name)]
