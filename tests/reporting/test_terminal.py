import io
from pathlib import Path

from rich.console import Console

from bench.recording.reader import read_run
from bench.reporting.terminal import print_summary
from tests.recording.made_up import cpu_run, gpu_run, made_case, write_run


def printed(folder: Path, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_summary(read_run(folder), console)
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
    assert "9.0e-01 (missed)" in text and "oom: rank 2" in text
    assert "No clear winner among ddp, 4 devices, batch 256 / fsdp" in " ".join(text.split())
    assert "<img src=x" in text and "! Parity missed" in text


def test_a_cpu_run_marks_what_is_emulated(tmp_path: Path) -> None:
    text = printed(cpu_run(tmp_path))
    assert text.startswith("CPU run: it shows the suite working") and "dp [emulated]" in text
    assert "512.0 MiB" in text


def test_names_are_not_markup(tmp_path: Path) -> None:
    text = printed(write_run(tmp_path, [(made_case("ddp", 1, 8, settings={"hook": "[red]x[/nope]"}), [1.0], [])]))
    assert "[red]x[/nope]" in text


def test_an_empty_run(tmp_path: Path) -> None:
    assert "holds no timed case" in printed(write_run(tmp_path, []))
