"""Stop a job where the doctor found a problem: python -m bench doctor --json | python3 stop_on_problems.py

A problem is what makes a run fail or its figures wrong. Problems and warnings are printed as annotations of the job.
Status 1 with a problem, 0 without.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

SHOWN = {"problem": "error", "warning": "warning"}


def annotation(finding: Mapping[str, str | None]) -> str:
    """A workflow command, in which a line break would end the text."""
    parts = [f"{finding['title']}: {finding['fact']}"]
    parts += [f"{name}: {finding[name]}" for name in ("effect", "remedy") if finding[name]]
    text = "; ".join(parts).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return f"::{SHOWN[str(finding['status'])]} title=doctor::{text}"


def main() -> int:
    findings = [finding for finding in json.load(sys.stdin)["findings"] if finding["status"] in SHOWN]
    for finding in findings:
        print(annotation(finding))
    return 1 if any(finding["status"] == "problem" for finding in findings) else 0


if __name__ == "__main__":
    sys.exit(main())
