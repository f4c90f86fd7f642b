"""Real workers that train: the loss of every strategy, the dtype in every replica, timed launches."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bench import strategies
from bench.measuring.control import Message
from bench.measuring.launch import RoundPlan, time_case
from bench.measuring.launcher import Launcher
from bench.measuring.steady import WarmupRule
from bench.strategies import registry
from tests.measuring import bad_ends, planted
from tests.measuring.support import make_case, make_job

NAMES = ("single", "dp", "balanced_dp", "ddp", "fsdp", "fsdp1")
BATCH = 12
FAST = RoundPlan(rounds=3, round_seconds=0.01, warmup=WarmupRule(tolerance=10.0, max_rounds=3, max_seconds=1.0))


def train(launcher: Launcher, strategy: str, **rest: Any) -> list[Message]:
    case = make_case(strategy, batch=BATCH, **rest)
    world_size = registry.get(strategy).world_size(case)
    with launcher.start(planted.train, make_job(case), world_size, 60) as session:
        return session.replies()


def mean_losses(replies: list[Message]) -> list[float]:
    """Loss per sample at every step, all ranks together."""
    columns: Any = [[reply["losses"] for reply in replies], [reply["weights"] for reply in replies]]
    losses, weights = (map(sum, zip(*column, strict=True)) for column in columns)
    return [loss / weight for loss, weight in zip(losses, weights, strict=True)]


@pytest.fixture(scope="module")
def expected(session_launcher: Launcher) -> list[float]:
    """The loss of one device at every step."""
    return mean_losses(train(session_launcher, "single"))


def test_the_loss_of_one_device_decreases(expected: list[float]) -> None:
    assert len(expected) == planted.STEPS
    assert expected == sorted(expected, reverse=True)
    assert expected[-1] < 0.9 * expected[0]


@pytest.mark.parametrize("strategy", NAMES[1:])
def test_every_strategy_follows_the_loss_of_one_device(
    launcher: Launcher, strategy: str, expected: list[float]
) -> None:
    replies = train(launcher, strategy)
    assert mean_losses(replies) == pytest.approx(expected, rel=1e-4)
    per_step: Any = [reply["weights"] for reply in replies]
    assert [sum(weights) for weights in zip(*per_step, strict=True)] == [BATCH] * planted.STEPS


@pytest.mark.parametrize("strategy", NAMES)
def test_autocast_reaches_every_replica(launcher: Launcher, strategy: str) -> None:
    """DataParallel's threads re-enter an outer autocast without its dtype, so it must be entered inside."""
    replies = train(launcher, strategy, precision="bf16")
    replicas = 2 if strategy in ("dp", "balanced_dp") else 1
    for reply in replies:
        assert reply["dtypes"] == ["torch.bfloat16"] * (planted.STEPS * replicas)
        assert set(reply["parameter_dtypes"]) == {"torch.float32"}  # type: ignore[arg-type]


def test_fp32_stays_fp32(launcher: Launcher) -> None:
    (reply,) = train(launcher, "dp")
    assert set(reply["dtypes"]) == {"torch.float32"}  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", NAMES)
def test_timed_launch_leaves_a_trace(launcher: Launcher, strategy: str) -> None:
    case = make_case(strategy, batch=BATCH)
    result = time_case(launcher, make_job(case), strategies.registry.get(strategy).world_size(case), FAST)
    assert result.outcome.status == "ok", result.outcome.traceback
    trace, clock = result.trace, result.clock
    assert trace is not None and trace.case == case
    assert len(trace.round_seconds) == 3 and min(trace.round_seconds) > 0
    assert trace.epoch_samples == 60_000 and trace.tokens_per_sample is None
    # One figure per process: host replicas share the first device's.
    own_process = [True] * case.num_devices if strategy not in ("dp", "balanced_dp") else [True, False]
    assert [device.host_peak_rss_bytes is not None for device in trace.devices] == own_process
    assert [device.cpu_percent is not None for device in trace.devices] == own_process
    assert [device.peak_allocated_bytes for device in trace.devices] == [None] * case.num_devices
    rss = trace.devices[0].host_peak_rss_bytes
    assert rss is not None and 50e6 < rss < 5e9  # bytes, not KiB: torch alone takes more than 50 MB
    parts = (clock.startup_seconds, clock.warmup_seconds, clock.measured_seconds, clock.teardown_seconds)
    assert all(part is not None and part >= 0 for part in parts)
    assert clock.wall_seconds == pytest.approx(sum(part or 0 for part in parts), abs=0.01)


def test_loss_that_is_not_finite_is_an_error_with_the_remedy(
    launcher: Launcher,
) -> None:
    case = make_case("single", workload=planted.PLANTED)
    result = launcher_result(launcher, case)
    assert result.outcome.status == "error"
    assert "the loss is nan" in str(result.outcome.reason)
    assert result.outcome.phase == "warm-up"


def launcher_result(launcher: Launcher, case: Any) -> Any:
    """A timed launch of the workload that only `planted.diverging` registers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bench.measuring.launch.measure", planted.diverging)
        return time_case(launcher, make_job(case), 1, FAST)


def test_threads_of_each_worker_are_those_of_the_launcher(launcher: Launcher) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launcher, "threads_per_worker", 3)
        with launcher.start(bad_ends.reply_pids, None, 2, 30) as session:
            assert [reply["threads"] for reply in session.replies()] == [3, 3]
    assert all(reply["threads"] == 1 for reply in train(launcher, "ddp"))


def test_driver_never_touches_cuda() -> None:
    assert not torch.cuda.is_initialized()
