"""The examination as a whole: no check stops another, and what was found is shown to a person and a program."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.doctor import box as boxes
from bench.doctor import show
from bench.doctor.box import Box, CudaFacts, TorchBuild, open_box, read_gpus
from bench.doctor.examine import findings
from bench.doctor.findings import AREAS, CHECKS, STATUSES, Check, Finding, Note, ok, problem
from bench.errors import UsageError
from bench.nvml import Answer

from .made_up import MadeUpNvml, machine


def names(found: list[Finding]) -> set[tuple[str, str]]:
    return {(finding.area, finding.title) for finding in found}


def test_every_check_has_a_known_area_and_a_title_of_its_own() -> None:
    assert {check.area for check in CHECKS} == set(AREAS)
    assert len({(check.area, check.title) for check in CHECKS}) == len(CHECKS)


@pytest.mark.parametrize("broken", range(len(CHECKS)), ids=lambda index: f"{CHECKS[index].area}-{CHECKS[index].title}")
def test_a_check_that_fails_is_a_finding_and_stops_no_other(broken: int) -> None:
    def fail(box: Box) -> Iterator[Note]:
        yield ok("said before it failed")
        raise RuntimeError("broken on purpose")

    checks = list(CHECKS)
    checks[broken] = replace(CHECKS[broken], look=fail)
    whole, found = findings(machine(gpus=2), CHECKS), findings(machine(gpus=2), checks)
    assert names(found) == names(whole) | {(CHECKS[broken].area, CHECKS[broken].title)}
    mine = [item for item in found if (item.area, item.title) == (CHECKS[broken].area, CHECKS[broken].title)]
    assert [item.fact for item in mine] == [
        "could not be checked: RuntimeError: broken on purpose", "said before it failed",
    ]  # fmt: skip


class RaisingNvml(MadeUpNvml):
    """Breaks what `ask` promises."""

    def ask(self, function: str, *arguments: object) -> Answer:
        raise RuntimeError(f"{function} crashed")


def test_the_real_checks_survive_an_nvml_that_answers_nothing_or_raises(tmp_path: Path) -> None:
    for nvml in (MadeUpNvml({}), RaisingNvml({})):
        box = Box(root=tmp_path, results=tmp_path, nvml=nvml, gpus=machine(gpus=2).gpus)
        found = findings(box, CHECKS)
        assert {"software", "gpus", "links", "host"} <= {finding.area for finding in found}
        failed = [finding for finding in found if finding.fact.startswith("could not be checked")]
        assert bool(failed) == isinstance(nvml, RaisingNvml)


def test_an_empty_root_breaks_no_check(tmp_path: Path) -> None:
    found = findings(Box(root=tmp_path, results=tmp_path), CHECKS)
    assert [finding for finding in found if finding.fact.startswith("could not be checked")] == []


def test_areas_come_in_their_order_and_the_worst_first() -> None:
    checks = [
        Check(area="disk", title="d", look=lambda box: [ok("fine")]),
        Check(area="host", title="h", look=lambda box: [ok("fine"), problem("bad", "effect", "remedy")]),
    ]
    found = findings(Box(), checks)
    assert [(finding.area, finding.status) for finding in found] == [
        ("host", "problem"),
        ("host", "ok"),
        ("disk", "ok"),
    ]


def test_gpus_that_cannot_be_read_leave_the_box_open(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*arguments: object) -> None:
        raise ValueError("not what was expected")

    monkeypatch.setattr(boxes, "nvml_session", lambda: io.StringIO())
    monkeypatch.setattr(boxes, "read_gpus", fail)
    monkeypatch.setattr(boxes, "read_cuda", lambda torch, gpus: CudaFacts())
    with open_box(tmp_path) as box:
        assert (box.nvml, box.gpus) == (None, ())
        assert box.nvml_problem == "NVML failed: ValueError: not what was expected"


def test_a_gpu_that_is_lost_is_kept_with_the_reason() -> None:
    answers = {
        "nvmlDeviceGetCount": 2,
        ("nvmlDeviceGetHandleByIndex", 0): Answer(reason="the GPU is lost", lost=True),
        ("nvmlDeviceGetHandleByIndex", 1): "h1",
        "nvmlDeviceGetUUID": "GPU-1",
    }
    lost, other = read_gpus(MadeUpNvml(answers))
    assert (lost.index, lost.problem) == (0, "the GPU is lost")
    assert (other.index, other.uuid, other.name, other.bus_id, other.problem) == (1, "GPU-1", None, None, None)


def test_torch_that_cannot_be_imported_is_read_as_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "torch" in (boxes.read_torch().problem or "")


def test_without_a_gpu_no_worker_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.measuring import machine as measured

    monkeypatch.setattr(measured, "cuda_view", lambda launcher, nvml: pytest.fail("a worker was started"))
    assert boxes.read_cuda(TorchBuild(version="2.14", cuda="13.0"), ()) == CudaFacts()
    assert boxes.read_cuda(TorchBuild(version="2.14"), machine().gpus) == CudaFacts()


def test_cuda_is_asked_where_nvml_sees_a_gpu_and_whatever_fails_there_is_a_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from bench.measuring import machine as measured

    build = TorchBuild(version="2.14", cuda="13.0")
    monkeypatch.setattr(measured, "cuda_view", lambda launcher, nvml: measured.CudaView(problem=str(nvml.gpu_names)))
    assert boxes.read_cuda(build, machine().gpus) == CudaFacts(asked=True, problem="('NVIDIA X',)")

    def fail(launcher: object, nvml: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(measured, "cuda_view", fail)
    assert boxes.read_cuda(build, machine().gpus).problem == "OSError: no more processes"


FOUND = [
    Finding(area="gpus", title="memory", status="warning", fact="[red]80[/red] GiB", effect="slow", remedy="wait"),
    Finding(area="gpus", title="topology", status="ok", fact="  0 1\n0 X NV4"),
    Finding(area="disk", title="results", status="ok", fact="\x1b[2Jroom"),
]


@pytest.mark.parametrize("width", [80, 140])
def test_the_table_shows_every_finding_within_the_width(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    show.print_findings([*FOUND, replace(FOUND[0], fact="word " * 60)], width=width)
    printed = capsys.readouterr().out
    lines = [line.rstrip() for line in printed.splitlines()]
    assert max(map(len, lines)) <= width
    assert "warning memory: [red]80[/red] GiB" in lines
    assert "          effect: slow" in lines and "          remedy: wait" in lines
    assert "          0 1" in lines and "        0 X NV4" in lines
    assert "ok      results: \\x1b[2Jroom" in lines
    assert lines[-2:] == ["4 findings: 0 problem, 2 warning, 0 info, 2 ok", "warning: gpus/memory"]


def test_json_holds_every_finding_as_plain_data() -> None:
    document = json.loads(show.to_json(FOUND))
    assert document["schema_version"] == 1
    assert document["counts"] == {"problem": 0, "warning": 1, "info": 0, "ok": 2}
    assert document["findings"][0] == {
        "area": "gpus", "title": "memory", "status": "warning", "fact": "[red]80[/red] GiB", "effect": "slow",
        "remedy": "wait",
    }  # fmt: skip
    assert document["findings"][1]["effect"] is None
    assert set(document["counts"]) == set(STATUSES)


def test_without_rich_the_table_is_refused_with_the_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setattr(show, "examine", lambda results: pytest.fail("examined in vain"))
    with pytest.raises(UsageError, match="--json"):
        show.run(tmp_path, as_json=False)
