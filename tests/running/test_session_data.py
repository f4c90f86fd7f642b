"""The data of a run: prepared once, and what becomes of cases whose data is not there or is damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.errors import DataError
from bench.workloads.mnist_cnn import MnistCnn
from tests.planning.made_up_machines import cpu, plan_of
from tests.running.made_up_launches import MadeUpLaunches, Open, mnist, rows


def test_data_is_prepared_once_for_all_launches(open_session: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    original = MnistCnn.prepare

    def prepare(self: MnistCnn, data: str, data_root: Any, cache: Path) -> Any:
        calls.append(data)
        return original(self, data, data_root, cache)

    monkeypatch.setattr(MnistCnn, "prepare", prepare)
    plan, cases = mnist()
    session = open_session(plan)
    session.prepare(cases)
    assert calls == ["real"]  # before any launch
    for case in cases:
        session.time(case, 0)
    assert calls == ["real"]
    assert {row.data_source for row in rows(session)} != {None}


def test_data_that_is_not_there_skips_its_cases_with_the_remedy(open_session: Open, launches: MadeUpLaunches) -> None:
    plan = plan_of(cpu(), workloads="bert_small,mnist_cnn", strategies="single", data="real")
    session = open_session(plan)
    (bert,), (digits,) = plan.comparison("bert_small"), plan.comparison("mnist_cnn")
    session.prepare([bert, digits])
    row = session.time(bert, 0).row
    assert row.status == "skipped" and "--data-root" in str(row.reason)
    assert session.time(digits, 0).row.status == "ok"


def test_data_that_breaks_is_an_error_with_a_traceback(open_session: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(self: MnistCnn, data: str, data_root: Any, cache: Path) -> Any:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(MnistCnn, "prepare", prepare)
    plan, (single, _) = mnist()
    session = open_session(plan)
    session.prepare([single])
    row = session.time(single, 0).row
    assert (row.status, row.reason, row.phase) == ("error", "ZeroDivisionError: planted", "data")
    assert row.traceback is not None and "in prepare" in row.traceback


def test_damaged_data_is_an_error_and_not_a_skip(open_session: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(self: MnistCnn, data: str, data_root: Any, cache: Path) -> Any:
        raise DataError("digits.gz is damaged; download it again")

    monkeypatch.setattr(MnistCnn, "prepare", prepare)
    plan, (single, _) = mnist()
    row = open_session(plan).time(single, 0).row
    assert (row.status, row.reason) == ("error", "digits.gz is damaged; download it again")
