import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import main
from tests.recording.made_up import cpu_run, gpu_run

WITHOUT_TORCH = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Blocker())
from bench.__main__ import main
import bench
results, out = sys.argv[1:]
codes = [main(["report", "latest", "--results", results, "--out", out]), main(["list", "runs", "--results", results]),
         main(["list", "metrics"]), len(bench.load(results)) - 4, main(["list", "strategies"])]
print(codes)
"""


def test_reports_and_lists_need_no_torch(tmp_path: Path) -> None:
    folder = cpu_run(tmp_path / "results")
    command = [sys.executable, "-c", WITHOUT_TORCH, str(tmp_path / "results"), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == str(tmp_path / "out" / f"{folder.name}.html")
    assert done.stdout.splitlines()[-1] == "[0, 0, 0, 0, 2]"
    assert done.stderr == (
        "error: list needs torch, which this Python does not have; use the Python that measures, in a checkout "
        ".nox/env/bin/python\n"
    )


@pytest.mark.parametrize("arguments", [["report", "latest"], ["list", "runs"]], ids=" ".join)
def test_a_python_without_pandas_gets_one_line_with_the_remedy(tmp_path: Path, arguments: list[str]) -> None:
    code = WITHOUT_TORCH.partition("from bench")[0].replace("torch", "pandas")
    code += "from bench.__main__ import main\nsys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, *arguments, "--results", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"error: {arguments[0]} needs pandas, which this Python does not have; pip install pandas pyarrow matplotlib "
        "jinja2, or use the Python that measures, in a checkout .nox/env/bin/python\n"
    )


def test_help_says_how_to_measure(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "`python -m pytest scenarios --help` lists its options under 'dpbench'" in said


def test_report_and_list_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    older, newer = gpu_run(tmp_path), cpu_run(tmp_path)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.parquet").write_text("x")
    assert main(["report", older.name, "--results", str(tmp_path), "--out", str(tmp_path / "o")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "o" / f"{older.name}.html")
    assert main(["list", "runs", "--results", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(newer.name) and line.endswith("launches: 16 ok") for line in lines)
    # 49 timed launches and 7 checks: that of `single` serves both of its batches
    ended = "launches: 56 ok, 1 error, 1 oom, 1 skipped"
    assert any(line.startswith(older.name) and line.endswith(ended) for line in lines)
    assert any(line.startswith("broken") and "no readable run" in line for line in lines)


def test_errors_go_to_stderr_with_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--results", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: no run in ")
    for arguments in ([], ["list", "nothing"], ["report", "--nope"]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2


def test_metrics_are_listed_with_their_units(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "metrics"]) == 0
    out = capsys.readouterr().out
    assert "step_seconds" in out and "[s]" in out and "[bytes, per device]" in out
