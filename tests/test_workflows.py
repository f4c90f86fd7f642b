"""What the workflows promise. Their schema and their security are held by `nox -s lint`."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # transformers brings it

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".github"
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((FOLDER / "workflows").iterdir())}
BENCH = WORKFLOWS["bench"]["jobs"]["bench"]
STEPS: list[dict[str, Any]] = BENCH["steps"]
SWEEP = FOLDER / "scripts" / "sweep.py"
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def all_steps() -> list[dict[str, Any]]:
    return [step for flow in WORKFLOWS.values() for job in flow["jobs"].values() for step in job["steps"]]


def place(**wanted: str) -> int:
    """Where the one step stands that has these entries."""
    (found,) = [at for at, step in enumerate(STEPS) if all(step.get(key) == value for key, value in wanted.items())]
    return found


def test_nothing_has_more_rights_than_it_needs() -> None:
    assert set(WORKFLOWS) == {"bench", "tests"}
    for flow in WORKFLOWS.values():
        assert flow["permissions"] == {}
        assert all(job["permissions"] == {"contents": "read"} for job in flow["jobs"].values())
    checkouts = [step for step in all_steps() if step.get("uses", "").startswith("actions/checkout@")]
    assert len(checkouts) == 2 and all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_actions_are_pinned_with_their_version() -> None:
    for path in (FOLDER / "workflows").iterdir():
        for line in path.read_text().splitlines():
            assert "uses:" not in line or re.search(r"uses: actions/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line


def test_no_expression_stands_in_a_script() -> None:
    scripts = [step["run"] for step in all_steps() if "run" in step]
    assert len(scripts) > 8 and not [script for script in scripts if "${{" in script]


@pytest.mark.parametrize("script", [step["run"] for step in all_steps() if "run" in step])
def test_scripts_are_bash(script: str) -> None:
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_fork_cannot_start_the_benchmark() -> None:
    # YAML reads the key `on` as true.
    assert set(WORKFLOWS["bench"][True]) == {"schedule", "workflow_dispatch"}
    assert BENCH["runs-on"] == ["self-hosted", "gpu"]


def test_one_benchmark_at_a_time_and_none_for_ever() -> None:
    assert WORKFLOWS["bench"]["concurrency"] == {"group": "benchmark", "cancel-in-progress": False}
    limited = sum(step.get("timeout-minutes", 0) for step in STEPS)
    assert limited < BENCH["timeout-minutes"] and STEPS[place(id="measure")]["timeout-minutes"] >= 45


def test_order_and_what_a_cancelled_job_still_does() -> None:
    measure = place(id="measure")
    sweeps = [at for at, step in enumerate(STEPS) if "sweep.py" in step.get("run", "")]
    uploads = [at for at, step in enumerate(STEPS) if "upload-artifact" in step.get("uses", "")]
    assert sweeps[0] < place(name="Check the GPUs and the machine") < measure < sweeps[1]
    assert max(sweeps) < min(uploads) and max(uploads) < place(id="compare") < place(name="Fail on a regression")
    assert place(name="Fail on a regression") == len(STEPS) - 1
    assert [STEPS[at]["with"]["path"].count("outputs.") for at in uploads] == [1, 2], "the report, the run's own folder"
    for step in STEPS[measure + 1 :]:
        assert re.match(r"always\(\)( && steps\.measure\.outcome != 'skipped')?$", step["if"])


def bash(step: dict[str, Any], folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the script of a step as a runner does."""
    files = {name: str(folder / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    whole = {"PATH": os.environ["PATH"], "RUNNER_TEMP": str(folder), "RUNNER_TOOL_CACHE": str(folder)} | files | env
    return subprocess.run(command, cwd=folder, env=whole, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("status", "fails", "said"),
    [("0", 0, "No case"), ("10", 1, "::error"), ("11", 0, "first night"), ("2", 1, "::error"), ("", 1, "::error")],
)
def test_a_regression_fails_and_a_first_night_does_not(tmp_path: Path, status: str, fails: int, said: str) -> None:
    done = bash(STEPS[-1], tmp_path, STATUS=status)
    assert done.returncode == fails and said in done.stdout
    assert (tmp_path / "GITHUB_STEP_SUMMARY").exists() == (status == "11")


@pytest.mark.parametrize("chosen", ["", "elsewhere"])
def test_the_run_has_a_name_before_it_starts(tmp_path: Path, chosen: str) -> None:
    results = str(tmp_path / chosen) if chosen else ""
    step = STEPS[place(id="place")]
    done = bash(step, tmp_path, RESULTS=results, GITHUB_RUN_ID="123", GITHUB_RUN_ATTEMPT="2")
    assert (done.returncode, done.stderr) == (0, "")
    outputs = dict(line.split("=", 1) for line in (tmp_path / "GITHUB_OUTPUT").read_text().splitlines())
    assert re.fullmatch(r"\d{8}T\d{6}Z-123-2", outputs["run"])
    assert outputs["results"] == (results or str(tmp_path / "dpbench" / "results"))
    assert Path(outputs["results"]).is_dir() and outputs["reports"] == str(tmp_path / "reports")


PRINTS_ITS_WORDS = """#!{python}
import os, sys
print(*sys.argv[1:], os.environ.get("DPBENCH_JOB"), sep="\\n")
sys.exit(3)
"""


def test_options_are_words_and_never_commands(tmp_path: Path) -> None:
    tool = tmp_path / "tools" / "bin" / "nox"
    tool.parent.mkdir(parents=True)
    tool.write_text(PRINTS_ITS_WORDS.format(python=sys.executable))
    tool.chmod(0o755)
    env = {"KEPT": str(tmp_path), "RUN": "r", "RESULTS": "a b", "REPORTS": "c", "PRESET": "standard"}
    env |= {"GITHUB_REPOSITORY": "o/r", "RUNNER_NAME": "box"}
    step = STEPS[place(id="measure")]
    done = bash(step, tmp_path, **env, OPTIONS="--launches 2 $(touch x) * --run-id=y ; touch z")
    assert done.returncode == 3, "the status of the run"
    words = done.stdout.splitlines()
    assert words[:3] == ["--envdir", f"{tmp_path}/environments", "-s"] and words[-1] == "o/r/box"
    own = ["--launches", "2", "$(touch", "x)", "*", "--run-id=y", ";", "touch", "z"]
    assert words[5:-1] == ["--device-type", "cuda", "--preset", "standard", *own,
                           "--results", "a b", "--reports", "c", "--run-id", "r"]  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tools"]
    assert bash(step, tmp_path, **env, OPTIONS="").stdout.splitlines()[8:10] == ["standard", "--results"]


FINDINGS = [
    {"area": "gpus", "title": "GPUs", "status": "ok", "fact": "8 of them", "effect": None, "remedy": None},
    {"area": "host", "title": "load", "status": "warning", "fact": "50 %\nbusy", "effect": "slow", "remedy": "wait"},
    {"area": "gpus", "title": "mode", "status": "problem", "fact": "PROHIBITED", "effect": None, "remedy": "-c 0"},
]


@pytest.mark.parametrize(("count", "status"), [(2, 0), (3, 1)])
def test_a_problem_that_the_doctor_finds_stops_the_job(count: int, status: int) -> None:
    command = [sys.executable, str(FOLDER / "scripts" / "stop_on_problems.py")]
    text = json.dumps({"findings": FINDINGS[:count]})
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    warned = "::warning title=doctor::load: 50 %25%0Abusy; effect: slow; remedy: wait"
    problem = "::error title=doctor::mode: PROHIBITED; remedy: -c 0"
    assert (done.returncode, done.stdout.splitlines()) == (status, [warned, problem][: count - 1])


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Processes with a session of their own, as workers have; all are ended after the test."""
    started = []

    def begin(code: str, mark: str | None) -> "subprocess.Popen[str]":
        env = {name: value for name, value in os.environ.items() if name != "DPBENCH_JOB"}
        env |= {} if mark is None else {"DPBENCH_JOB": mark}
        command = [sys.executable, "-c", f"{code}\nprint('up', flush=True)\nimport time; time.sleep(60)"]
        process = subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE, start_new_session=True)
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "up\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def sweep(mark: str) -> subprocess.CompletedProcess[str]:
    """Sweep with less patience. The sweep itself carries the mark, as it would where a whole job has it."""
    code = f"import sys; sys.path.insert(0, {str(SWEEP.parent)!r}); import sweep; "
    code += f"sweep.PATIENCE_SECONDS, sweep.POLITE_SECONDS = 0.3, 0.5; sys.exit(sweep.main({mark!r}))"
    env = dict(os.environ, DPBENCH_JOB=mark)
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


@linux
def test_the_sweep_ends_what_carries_the_mark_and_nothing_else(start: Start) -> None:
    mark = f"owner/project/box-{os.getpid()}"
    polite = start("", mark)
    stubborn = start("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)", mark)
    others = [start("", None), start("", f"{mark}-2"), start("", "owner/project")]
    done = sweep(mark)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (polite.wait(5), stubborn.wait(5)) == (-signal.SIGTERM, -signal.SIGKILL)
    assert [process.poll() for process in others] == [None, None, None]
    named = [line.split(":")[0] for line in done.stdout.splitlines()]
    assert sorted(named) == sorted(
        [f"SIGTERM to {polite.pid}", f"SIGTERM to {stubborn.pid}", f"SIGKILL to {stubborn.pid}"]
    )


@linux
def test_the_sweep_ends_a_child_that_was_forked_and_left(start: Start) -> None:
    mark = f"owner/project/forked-{os.getpid()}"
    code = "import os, time\npid = os.fork()\nif not pid:\n    os.setsid(); time.sleep(60); os._exit(0)"
    parent = start(code, mark)
    parent.kill()
    parent.wait()
    done = sweep(mark)
    assert done.returncode == 0 and done.stdout.startswith("SIGTERM to ")


@linux
def test_the_sweep_waits_for_a_run_that_is_ending_and_says_nothing_without_one(start: Start) -> None:
    mark = f"owner/project/ending-{os.getpid()}"
    ending = start("import threading, os; threading.Timer(0.1, lambda: os._exit(0)).start()", mark)
    began = time.monotonic()
    assert (sweep(mark).stdout, sweep(mark).stdout, ending.wait(5)) == ("", "", 0)
    assert time.monotonic() - began < 10


def test_the_sweep_refuses_to_look_for_nothing() -> None:
    assert (sweep("").returncode, "mark is empty" in sweep("").stdout) == (1, True)
