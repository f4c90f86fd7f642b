"""Launches with real workers that are watched: the timeline is filled, however the launch ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from bench.measuring.launch import Clock, LaunchResult, RoundPlan, Watch, run_launch, time_case
from bench.measuring.launcher import Launcher, Session
from bench.measuring.machine import cpu_machine
from bench.measuring.steady import WarmupRule
from bench.schema import Device, Trace
from bench.watching.watcher import Watcher
from tests.measuring.support import make_case, make_job
from tests.watching.tasks import run_out_of_memory_in_a_round

PLAN = RoundPlan(rounds=2, round_seconds=0.2, warmup=WarmupRule(max_rounds=2))


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    made = Watcher([Device(index=index, name="a CPU") for index in range(2)])
    yield made
    made.close()


def run(launcher: Launcher, watcher: Watcher, strategy: str, **job: Any) -> LaunchResult:
    ranks = 2 if strategy == "ddp" else 1
    return time_case(launcher, make_job(make_case(strategy, **job)), ranks, PLAN, watcher)


def test_a_launch_leaves_a_timeline_of_every_worker(launcher: Launcher, watcher: Watcher) -> None:
    result = run(launcher, watcher, "ddp")
    assert result.outcome.status == "ok" and result.watch_problems == ()
    assert result.trace is not None and result.trace.timeline == result.timeline
    for place in (0, 1):
        moments = [moment for moment in result.timeline if moment.device_index == place]
        measured = [moment for moment in moments if moment.measured]
        # Of the measured rounds at least both ends, and something before them.
        assert len(measured) >= 2 and not moments[0].measured
        assert measured == moments[moments.index(measured[0]) : moments.index(measured[-1]) + 1]
        clock = result.clock
        assert clock.startup_seconds is not None and clock.warmup_seconds is not None
        assert clock.measured_seconds is not None and clock.wall_seconds is not None
        before = clock.startup_seconds + clock.warmup_seconds
        assert before <= measured[0].elapsed_seconds <= measured[-1].elapsed_seconds
        assert moments[-1].elapsed_seconds <= clock.wall_seconds
        assert all(moment.host_rss_bytes and moment.host_rss_bytes > 50e6 for moment in moments)
        assert any(moment.cpu_percent for moment in moments)
        # A CPU has no GPU gauges, and nothing says that they are missing.
        assert all(moment.unavailable == () and moment.power_watts is None for moment in moments)


def test_replicas_in_one_process_have_host_figures_on_the_first_position(launcher: Launcher, watcher: Watcher) -> None:
    result = run(launcher, watcher, "dp")
    assert result.outcome.status == "ok"
    assert all(m.host_rss_bytes is not None for m in result.timeline if m.device_index == 0)
    others = [moment for moment in result.timeline if moment.device_index == 1]
    assert others and all(m.host_rss_bytes is None and len(m.unavailable) == 2 for m in others)


def test_a_launch_that_fails_keeps_its_timeline(launcher: Launcher, watcher: Watcher) -> None:
    # 5 samples do not divide over 2 workers: they fail while they build.
    result = run(launcher, watcher, "ddp", batch=5)
    assert result.outcome.status == "error" and result.trace is None
    assert {moment.device_index for moment in result.timeline} == {0, 1}
    assert not any(moment.measured for moment in result.timeline)


def test_a_launch_that_runs_out_of_memory_keeps_its_timeline(launcher: Launcher, watcher: Watcher) -> None:
    watch = Watch(watcher)

    def drive(session: Session, clock: Clock) -> tuple[Trace, str | None]:
        watch.begin()
        session.command({"op": "round"})
        session.command({"op": "round"})
        raise AssertionError("the second round runs out of memory")

    job = make_job(make_case("ddp"))
    result = run_launch(launcher, run_out_of_memory_in_a_round, job, 2, drive, watch)
    assert result.outcome.status == "oom" and result.trace is None
    assert result.watch_problems == ()
    for place in (0, 1):
        measured = [moment for moment in result.timeline if moment.measured and moment.device_index == place]
        # Up to the failure: in the second round too, which begins 0.3 s after the first.
        assert measured[-1].elapsed_seconds - measured[0].elapsed_seconds > 0.3


def test_a_killed_watcher_costs_no_launch(
    launcher: Launcher, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = watcher.begin

    def kill_it() -> None:
        assert watcher.pid is not None
        os.kill(watcher.pid, signal.SIGKILL)
        begin()

    monkeypatch.setattr(watcher, "begin", kill_it)
    result = run(launcher, watcher, "ddp")
    assert result.outcome.status == "ok" and result.trace is not None and len(result.trace.round_seconds) == 2
    assert result.timeline == () and "the watcher ended" in result.watch_problems[0]
    monkeypatch.setattr(watcher, "begin", begin)
    again = run(launcher, watcher, "ddp")
    assert again.timeline and again.watch_problems == ()


def test_without_a_watcher_nothing_is_read(launcher: Launcher) -> None:
    result = time_case(launcher, make_job(make_case("ddp")), 2, PLAN)
    assert result.outcome.status == "ok" and (result.timeline, result.watch_problems) == ((), ())


def test_cpu_devices_have_no_gpu_to_watch() -> None:
    assert all(device.uuid is None and device.capability is None for device in cpu_machine().devices)
