"""What a step communicates, byte by byte against theory, with two real processes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.measuring.launch import RoundPlan, time_case
from bench.measuring.launcher import Launcher
from bench.measuring.steady import WarmupRule
from bench.measuring.traffic import THREADS, Traffic, traffic_of, with_traffic
from bench.schema import DeviceTrace
from bench.strategies import registry
from tests.measuring import counted_models as models
from tests.measuring.support import make_case, make_job

PLAN = RoundPlan(rounds=2, round_seconds=0.0, warmup=WarmupRule(max_rounds=2, max_seconds=3.0))
# Two convolutions and two linear layers of float32, with their biases.
MNIST_BYTES = 4 * (32 * 9 + 32 + 64 * 32 * 9 + 64 + 9216 * 128 + 128 + 128 * 10 + 10)


def seen(launcher: Launcher, strategy: str, kind: Any = None, **rest: Any) -> list[DeviceTrace]:
    case = make_case(strategy, **rest)
    job = make_job(case)
    if kind is not None:
        job = replace(
            job, case=replace(case, workload=kind.name, data=None), address=f"{kind.__module__}:{kind.__name__}"
        )
    result = time_case(launcher, job, registry.get(strategy).world_size(case), PLAN)
    assert result.outcome.status == "ok" and result.trace is not None, result.outcome
    return list(result.trace.devices)


@pytest.mark.parametrize(
    ("strategy", "settings", "times"),
    [
        ("ddp", {}, 1),  # all gradients, reduced
        ("fsdp", {}, 3),  # all blocks gathered for forward and for backward, all gradients reduced to shards
        ("fsdp", {"reshard_after_forward": "off"}, 2),
        ("fsdp1", {}, 3),
        ("fsdp1", {"sharding_strategy": "shard_grad_op"}, 2),
    ],
)
def test_payload_is_that_of_theory(launcher: Launcher, strategy: str, settings: dict[str, str], times: int) -> None:
    for device in seen(launcher, strategy, settings=settings):
        assert (device.communication_bytes, device.communication_unknown) == (times * MNIST_BYTES, None)


def test_ddp_broadcasts_buffers_too(launcher: Launcher) -> None:
    kind = models.NormalisedNet
    for device in seen(launcher, "ddp", kind):
        assert device.communication_bytes == 4 * kind.parameters + kind.buffer_bytes


def test_ddp_communicates_once_an_optimizer_step(launcher: Launcher) -> None:
    for device in seen(launcher, "ddp", batch=8, accumulation_steps=2):
        assert device.communication_bytes == MNIST_BYTES


def test_one_device_sends_nothing_and_threads_cannot_be_seen(launcher: Launcher) -> None:
    (single,) = seen(launcher, "single")
    assert (single.communication_bytes, single.communication_unknown) == (0, None)
    for device in seen(launcher, "dp"):
        assert (device.communication_bytes, device.communication_unknown) == (None, THREADS)


def test_a_step_that_fails_is_a_reason() -> None:
    def step() -> None:
        raise ValueError("planted")

    message = traffic_of(step, make_case("ddp"), registry.get("ddp"))
    assert message == {"unknown": "the step that was looked at failed: ValueError: planted"}


def test_a_launch_whose_last_step_fails_keeps_its_figures(launcher: Launcher) -> None:
    for device in seen(launcher, "ddp", models.FailsWhereItIsLookedAt):
        assert device.communication_bytes is None and "planted" in str(device.communication_unknown)


def test_operators_that_are_no_collectives_do_not_count() -> None:
    with Traffic() as traffic:
        total: Tensor = torch.ones(8) + torch.ones(8)
    assert total.sum() == 16 and traffic.payload_bytes == 0


def test_one_process_speaks_for_all_its_devices() -> None:
    traces = [DeviceTrace(device_index=index) for index in range(2)]
    both = with_traffic(traces, [{"unknown": "threads"}])
    assert [(trace.communication_bytes, trace.communication_unknown) for trace in both] == [(None, "threads")] * 2
    each = with_traffic(traces, [{"bytes": 1}, {"bytes": 2}])
    assert [trace.communication_bytes for trace in each] == [1, 2]
