"""The examination: every check in turn, each on its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from bench.doctor import disk, environment, gpu_state, gpus, host, limits, links, network, software
from bench.doctor.box import Box, open_box
from bench.doctor.findings import AREAS, CHECKS, STATUSES, Check, Finding

MODULES = (software, gpus, gpu_state, links, host, limits, network, disk, environment)
"""Imported so that their checks stand in the list."""


def examine(results: Path) -> list[Finding]:
    """Findings about this machine, by area, the worst first. `results`: the folder where runs would be kept."""
    with open_box(results) as box:
        return findings(box, CHECKS)


def findings(box: Box, checks: Iterable[Check]) -> list[Finding]:
    """What these checks say of a box. A check that fails is a finding too; what it had said before stays."""
    found: list[Finding] = []
    for item in checks:
        try:
            for note in item.look(box):
                found.append(Finding(area=item.area, title=item.title, **asdict(note)))
        except Exception as error:
            found.append(
                Finding(
                    area=item.area,
                    title=item.title,
                    status="info",
                    fact=f"could not be checked: {type(error).__name__}: {error}",
                    effect="unknown; the other checks are not touched",
                    remedy="please report this as an error of dpbench",
                )
            )
    return sorted(found, key=lambda finding: (AREAS.index(finding.area), STATUSES.index(finding.status)))
