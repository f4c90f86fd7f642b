import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.analysis.load import load
from bench.commands.export import FORMATS
from bench.errors import ResultsError
from bench.recording.reader import read_run
from bench.recording.writer import RunWriter
from bench.reporting.exporting import TABLES, TRACKERS, Exported, export
from bench.reporting.exporting.markdown import code, escaped
from tests.recording.made_up import METRICS, NASTY, cpu_run, gpu_run, made_case, made_launch, made_run, timed, write_run
from tests.reporting.test_command_line import WITHOUT_TORCH

# Launches at 100/1.1, 100 and 110 samples/s with 64 samples a step: geometric mean 100 samples/s, 0.64 s a step. Their
# logarithms lie ln 1.1 = 0.0953102 apart, which is their standard deviation; Student's t of 2 degrees of freedom is
# 4.302653, so that the 95 % interval is a factor exp(4.302653 x 0.0953102 / sqrt 3) = 1.267142 to both sides.
RATES = [100 / 1.1, 100.0, 110.0]
FACTOR = 1.267142


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """One case with an interval, one with a single launch, one out of memory after two good launches."""
    half = made_case("fsdp", 2, 64)
    folder = write_run(
        tmp_path,
        [(made_case("ddp", 2, 64), RATES, [3.0, 2.0]), (made_case("dp", 2, 64), [50.0], []), (half, [70.0, 71.0], [])],
        failed=[(made_case("single", 1, 64), {"status": "oom", "reason": "CUDA out of memory,\n 3.1 GiB | asked for"})],
    )
    return folder


def exported(folder: Path, name: str) -> Exported:
    return export(read_run(folder), name)


def test_github_action(small: Path) -> None:
    made = exported(small, "github-action")
    ddp, dp, _ = sorted(json.loads(made.text), key=lambda entry: entry["name"])
    assert ddp["name"] == "resnet50-ddp-2x-b64-bf16" and ddp["unit"] == "s/step"
    assert ddp["value"] == pytest.approx(0.64)
    assert ddp["range"] == "± 0.171", "0.64 x 1.267142 - 0.64; the other side is 0.1349"
    assert ddp["extra"] == "run 20261129T233022Z-ab12\nlaunches: 3\n95 % interval 0.505074 to 0.810971 s"
    assert dp["value"] == pytest.approx(1.28) and "range" not in dp and "too few launches" in dp["extra"]
    assert made.left_out == ("resnet50-single-1x-b64-bf16: oom, CUDA out of memory, 3.1 GiB | asked for",)


def test_bencher(small: Path) -> None:
    made = json.loads(exported(small, "bencher").text)
    assert list(made) == ["resnet50-dp-2x-b64-bf16", "resnet50-ddp-2x-b64-bf16", "resnet50-fsdp-2x-b64-bf16"]
    nanoseconds, rate = made["resnet50-ddp-2x-b64-bf16"]["latency"], made["resnet50-ddp-2x-b64-bf16"]["throughput"]
    expected = {"value": 0.64e9, "lower_value": 0.64e9 / FACTOR, "upper_value": 0.64e9 * FACTOR}
    assert nanoseconds == pytest.approx(expected, rel=1e-6)
    assert rate == pytest.approx({"value": 100, "lower_value": 100 / FACTOR, "upper_value": 100 * FACTOR}, rel=1e-6)
    assert made["resnet50-dp-2x-b64-bf16"] == {
        "latency": {"value": pytest.approx(1.28e9)},
        "throughput": {"value": pytest.approx(50.0)},
    }


def test_a_case_that_is_not_ranked_is_there_and_says_so(tmp_path: Path) -> None:
    made = exported(cpu_run(tmp_path / "cpu"), "github-action")
    assert made.not_ranked == ("mnist_cnn-dp-2x-b64-fp32: emulated",) and made.left_out == ()
    (dp,) = (entry for entry in json.loads(made.text) if "-dp-" in entry["name"])
    assert dp["extra"].endswith("\nnot ranked: emulated")
    other = exported(gpu_run(tmp_path / "gpu"), "bencher")
    assert other.not_ranked == ("resnet50-fsdp1-4x-b256-bf16: parity missed",)
    assert any(line.startswith("Parity missed: the weights are not those") for line in other.doubts)
    assert not any(line.startswith(("Skipped", "Did not end ok")) for line in other.doubts), "those are left out"


def test_a_case_with_a_launch_that_failed_has_no_figure(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, made_run(), METRICS)
    for position, (strategy, number, status) in enumerate((("ddp", 0, "ok"), ("ddp", 1, "error"), ("dp", 0, "ok"))):
        launch = made_launch(made_case(strategy, 2, 64), number, position, status=status)
        writer.add(launch, timed(launch, 50.0) if status == "ok" else [])
    made = exported(writer.folder, "bencher")
    assert made.left_out == ("resnet50-ddp-2x-b64-bf16: error, no reason recorded",)
    assert list(json.loads(made.text)) == ["resnet50-dp-2x-b64-bf16"]


def test_csv_has_the_rows_of_load(small: Path) -> None:
    table = load(small)
    rows = list(csv.DictReader(io.StringIO(exported(small, "csv").text)))
    assert [row["case_id"] for row in rows] == list(table.case_id) and list(rows[0]) == list(table.columns)
    ddp, oom = rows[0], rows[-1]
    assert float(ddp["step_seconds"]) == pytest.approx(0.64)
    assert json.loads(ddp["peak_allocated_bytes_per_device"]) == [3 * 2**30, 2 * 2**30]
    assert json.loads(ddp["chunk_sizes"]) == [32, 32] and ddp["reason"] == ""
    assert (oom["status"], oom["step_seconds"]) == ("oom", "")
    assert oom["reason"] == "CUDA out of memory,\n 3.1 GiB | asked for"


def test_csv_has_an_unknown_device_in_its_list_as_null(tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(exported(cpu_run(tmp_path), "csv").text)))
    (dp,) = (row for row in rows if row["strategy"] == "dp")
    assert json.loads(dp["host_peak_rss_bytes_per_device"]) == [2**29, None]


def test_markdown(small: Path) -> None:
    lines = exported(small, "markdown").text.splitlines()
    assert lines[0] == "## dpbench run 20261129T233022Z-ab12"
    table = [line for line in lines if line.startswith("|")]
    assert table[2] == (
        "| single | 1 | 64 bf16 | – | – | – | – | oom: `CUDA out of memory, 3.1 GiB \\| asked for` |"
    ), "a pipe cuts a cell in code, too"
    assert table[0].count("|") == 9
    assert (
        "| ddp *fastest so far* | 2 | 64 bf16 | 100.0 (78.92 to 126.7) | – | 3.000 GiB (least 2.000) | – | ok |"
        in table
    )
    assert sum("too few launches" in line for line in table) == 1
    assert "### Reasons to doubt figures" in lines and any(line.startswith("  - remedy: `") for line in lines)
    assert any(line.startswith("ddp (2 devices, global batch 64, bf16)") or "clear winner" in line for line in lines)


def test_markdown_of_a_cpu_run_begins_with_what_it_is(tmp_path: Path) -> None:
    text = exported(cpu_run(tmp_path), "markdown").text
    assert text.splitlines()[2].startswith("> **CPU run: it shows the suite working, not GPU speed")
    assert "| dp *emulated* | 2 | 64 fp32 | 1,200 (" in text


def test_nothing_in_a_run_is_markup(tmp_path: Path) -> None:
    text = exported(gpu_run(tmp_path), "markdown").text
    outside_of_code = "".join(text.split("`")[::2])
    assert NASTY in text, "in code"
    assert "<img" not in outside_of_code.replace("\\<", "") and "\\<img src=x" in outside_of_code
    assert "$x" not in outside_of_code.replace("\\$", "")
    cells = {line.replace("\\|", "").count("|") for line in text.splitlines() if line.startswith("|")}
    assert cells == {9}


def test_escaping() -> None:
    assert escaped("mnist_cnn _a_ *b* [c](d) `e` <f> #1 @g") == (
        "mnist_cnn \\_a\\_ \\*b\\* \\[c\\](d) \\`e\\` \\<f\\> \\#1 \\@g"
    )
    assert escaped("a\n\n# b |") == "a \\# b \\|"
    assert code("a `b` ``c``") == "``` a `b` ``c`` ```" and code("x") == "`x`" and code(" \n") == ""


def test_a_run_without_a_figure_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match="holds no timed case"):
        exported(write_run(tmp_path / "empty", []), "csv")
    failed = write_run(tmp_path / "failed", [], failed=[(made_case("ddp", 2, 8), {"status": "oom", "reason": "why"})])
    with pytest.raises(ResultsError, match="none of the 1 cases .* e.g. resnet50-ddp-2x-b8-bf16: oom, why; --format"):
        exported(failed, "bencher")
    assert "oom: `why`" in exported(failed, "markdown").text


def test_every_format_of_the_command_is_there() -> None:
    assert set(FORMATS) == {*TRACKERS, *TABLES}


def test_the_command_keeps_stdout_for_the_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = cpu_run(tmp_path)
    assert main(["export", "latest", "--format", "bencher", "--results", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert said.out == exported(folder, "bencher").text
    assert said.err.splitlines()[0].startswith("CPU run: it shows the suite working")
    assert "not ranked: mnist_cnn-dp-2x-b64-fp32: emulated" in said.err.splitlines()
    assert main(["export", "latest", "--format", "markdown", "--results", str(tmp_path)]) == 0
    assert capsys.readouterr().err == "", "it stands on top of the text"


def test_the_command_writes_a_file_whole_or_not_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = cpu_run(tmp_path)
    target = tmp_path / "made" / "table.csv"
    arguments = ["export", folder.name, "--format", "csv", "--results", str(tmp_path), "--output"]
    assert main([*arguments, str(target)]) == 0
    assert capsys.readouterr().out == f"{target}\n" and target.read_text() == exported(folder, "csv").text
    assert [path.name for path in target.parent.iterdir()] == ["table.csv"]
    assert main([*arguments, str(target.parent)]) == 2, "a folder"
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"error: cannot write {target.parent}: ")


def test_an_unknown_run_is_named_with_those_there_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = cpu_run(tmp_path)
    assert main(["export", "nope", "--format", "csv", "--results", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"error: no run 'nope' in {tmp_path}; there is: {folder.name}\n"


def test_it_needs_no_torch_and_takes_a_terminal_without_the_signs(tmp_path: Path) -> None:
    cpu_run(tmp_path)
    blocked = WITHOUT_TORCH.partition("results, out")[0] + "sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", blocked, "export", "latest", "--format", "markdown", "--results", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONIOENCODING": "ascii"})
    assert "1.33\\xd7" in done.stdout
