"""Sessions of the project. `bench` and `tests` share the environment that `env` makes (it holds torch: 6 GB).

With `nox --no-venv` nothing is installed and the Python that runs nox is used, as it is
right in a container that already has a fitting torch.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nox

nox.options.sessions = ["bench"]
nox.options.reuse_existing_virtualenvs = True

TEST_GROUPS = ("test",)
END_OF_A_RUN_SECONDS = 60.0
WORKFLOWS = Path(".github", "workflows")
shared_python = sys.executable


@nox.session(default=False)
def env(session: nox.Session) -> None:
    """Make the environment that the other sessions share."""
    if session.virtualenv.venv_backend == "none":
        return
    global shared_python
    shared_python = str(Path(session.bin, "python"))
    session.install("--editable", ".", *nox.project.dependency_groups(nox.project.load_toml(), *TEST_GROUPS))


def run_python(session: nox.Session, *arguments: str) -> None:
    """Run the shared environment's Python."""
    session.run(shared_python, *arguments, external=True)


@nox.session(venv_backend="none", requires=["env"])
def bench(session: nox.Session) -> None:
    """Measure, then render the report: nox -s bench -- OPTIONS (-- --help lists them under 'dpbench')."""
    # After Ctrl-C the run is compacted and its report rendered; nox would kill it after half a second.
    command = (shared_python, "-m", "pytest", "scenarios", *session.posargs)
    session.run(*command, external=True, interrupt_timeout=END_OF_A_RUN_SECONDS)


@nox.session(venv_backend="none", requires=["env"])
def tests(session: nox.Session) -> None:
    """The test suite; needs no GPU."""
    run_python(session, "-m", "pytest", "tests", "-m", "not slow", *session.posargs)


@nox.session(venv_backend="none", requires=["env"])
def slow(session: nox.Session) -> None:
    """What takes long or needs more of the machine: the benchmarks of the suite itself."""
    run_python(session, "-m", "pytest", "tests", "-m", "slow", *session.posargs)


@nox.session(venv_backend="none", requires=["env"])
def report(session: nox.Session) -> None:
    """Render a run's page again: nox -s report -- [RUN|latest] [--out DIR]."""
    run_python(session, "-m", "bench", "report", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, that nothing needs a newer Python than pyproject.toml says, and the workflows."""
    session.install(*nox.project.dependency_groups(nox.project.load_toml(), "lint"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run(
        "vermin", "--no-tips", "--target=3.10-", "--violations", "bench", "scenarios", "noxfile.py", "conftest.py",
        ".github/scripts",
    )  # fmt: skip
    session.run("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *map(str, WORKFLOWS.glob("*.y*ml")))
    session.run("zizmor", "--offline", "--pedantic", "--strict-collection", "--no-progress", str(WORKFLOWS))


@nox.session(venv_backend="none", requires=["env"])
def typecheck(session: nox.Session) -> None:
    """mypy, strict, against the real torch."""
    if session.virtualenv.venv_backend != "none" or shared_python != sys.executable:
        groups = nox.project.dependency_groups(nox.project.load_toml(), "typecheck")
        run_python(session, "-m", "pip", "install", "--quiet", *groups)
    run_python(session, "-m", "mypy")
