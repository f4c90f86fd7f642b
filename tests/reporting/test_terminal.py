import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from bench.analysis.balance import balance_summaries
from bench.analysis.summary import summarise
from bench.recording.reader import RunData, read_run
from bench.reporting.cells import lines
from bench.reporting.terminal import print_summary
from bench.schema import Case
from tests.recording.made_up import cpu_run, gpu_run, made_case, write_run
from tests.reporting.made_up_sweep import sweep_run

Plan = list[tuple[Case, list[float], list[float | None]]]


def printed(folder: Path, width: int = 200) -> str:
    return shown(read_run(folder), width)


def shown(data: RunData, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_summary(data, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_gpu_run(tmp_path: Path) -> None:
    text = printed(gpu_run(tmp_path))
    assert (
        "ddp [fastest so far]" in " ".join(text.split())
        and "3.63×" in text
        and "23.00 GiB" in text
        and "least 20.00" in text
    )
    assert "9.0e-01 (missed)" in text and "oom, rank 2: CUDA out of memory, 3.1 GiB asked for" in text
    assert "No clear winner among ddp, 4 devices, batch 256 / fsdp" in " ".join(text.split())
    assert "<img src=x" in text and "! Parity missed" in text


def test_a_cpu_run_marks_what_is_emulated(tmp_path: Path) -> None:
    text = printed(cpu_run(tmp_path))
    assert text.startswith("CPU run: it shows the suite working") and "dp [emulated]" in text
    assert "512.0 MiB" in text


def test_a_narrow_terminal_gets_fewer_columns_and_loses_no_status(tmp_path: Path) -> None:
    text = printed(gpu_run(tmp_path), width=80)
    headings = text[: text.index("━")]
    assert all(word in headings for word in ("strategy", "batch", "(95 %)", "parity", "status"))
    assert "step" not in headings and "vs dp" not in headings and "on a terminal of 110 columns" in text
    assert "missed" in text and "…" not in text[: text.index("step time")]
    assert max(map(len, text[: text.index("step time")].splitlines())) <= 80
    assert "vs dp" in printed(gpu_run(tmp_path / "again"), width=110).partition("━")[0]


def test_reasons_stand_below_the_table_whole_and_unbroken(tmp_path: Path) -> None:
    why = "2 parameters got no gradient, " + "named here at length, " * 8 + "give --strategies ddp:static_graph=on"
    failed = [
        (made_case("ddp", 2, 8 * (index + 1)), {"status": "skipped", "reason": f"{index} {why}"}) for index in range(7)
    ]
    text = printed(write_run(tmp_path, [], failed=failed), width=100)
    table, below = text.split("! Skipped\n")
    assert table.count("skipped") == 8 and "static_graph" not in table, "seven rows and the verdict"
    assert below.splitlines() == [f"    resnet50: ddp, batch {8 * (i + 1)}: {i} {why}" for i in range(7)]


def test_a_cpu_run_says_what_single_is(tmp_path: Path) -> None:
    data = read_run(cpu_run(tmp_path))
    data = replace(data, launches=tuple(replace(launch, threads_per_worker=8) for launch in data.launches))
    assert "single here is 8 threads of 16 cores" in shown(data)


@pytest.mark.parametrize("device_type", ["cuda", "cpu"])
def test_a_sweep_is_answered_in_the_words_of_the_page(tmp_path: Path, device_type: str) -> None:
    folder = sweep_run(tmp_path, device_type)
    (sweep,) = balance_summaries(read_run(folder))
    shown = printed(folder, width=80).splitlines()
    start = shown.index("resnet50: GPU 0's share of batch 256 on 4 devices") + 1
    assert shown[start : start + len(sweep.sentences) + 1] == [*(f"  {said}" for said in sweep.sentences), ""]
    assert len(sweep.sentences) > 1 and "GPU 0's share" not in printed(gpu_run(tmp_path))


def test_the_case_that_others_are_compared_with_says_so(tmp_path: Path) -> None:
    """Whichever placement of dp's loss was faster, and one device at its batch."""
    replica = {"loss_on": "replica"}
    for name, rates in (("a", (150.0, 140.0)), ("b", (140.0, 150.0))):
        plan: Plan = [
            (made_case("single", 1, 64), [100.0], []),
            (made_case("dp", 2, 64), [rates[0]], []),
            (made_case("dp", 2, 64, settings=replica), [rates[1]], []),
        ]
        (summary,) = summarise(read_run(write_run(tmp_path / name, plan)))
        cells = [(line.versus_single.value, line.versus_dp.value) for line in lines(summary)]
        first, second = ("reference", "0.93× unclear") if name == "a" else ("0.93× unclear", "reference")
        assert cells[0] == ("reference", "–") and [against_dp for _, against_dp in cells[1:]] == [first, second]
    (alone,) = summarise(read_run(write_run(tmp_path / "alone", plan[:1])))
    assert lines(alone)[0].versus_single.value == "–", "nothing was compared with it"


def test_an_interval_that_tells_nothing_shows_no_figures(tmp_path: Path) -> None:
    plan: Plan = [(made_case("single", 1, 64), [900.0, 910.0], []), (made_case("ddp", 1, 64), [100.0, 4000.0], [])]
    text = printed(write_run(tmp_path, plan))
    assert text.count("unknown (2 launches)") == 1, "the ratio; throughput shows its launches"
    assert "100.0 to 4,000" in text


def test_names_are_not_markup(tmp_path: Path) -> None:
    text = printed(write_run(tmp_path, [(made_case("ddp", 1, 8, settings={"hook": "[red]x[/nope]"}), [1.0], [])]))
    assert "[red]x[/nope]" in text


def test_an_empty_run(tmp_path: Path) -> None:
    assert "holds no timed case" in printed(write_run(tmp_path, []))
