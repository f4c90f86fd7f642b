"""The options of a run, as pytest takes them."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from bench.planning.options import RunOptions
from bench.planning.presets import PRESETS

DEFAULTS = RunOptions()


def add_options(group: Any) -> None:
    """Add every option of a run to a pytest option group (or an argparse one)."""
    add = getattr(group, "addoption", None) or group.add_argument
    presets = "; ".join(f"{preset.name}: {preset.meaning}" for preset in PRESETS.values())
    add("--preset", metavar="NAME", help=presets)
    add("--device-type", metavar="TYPE", default=DEFAULTS.device_type, help="auto (default), cuda or cpu")
    add(
        "--devices",
        metavar="N|LIST",
        help="number of devices, or a list such as 0,2; default: all GPUs, or 2 CPU workers",
    )
    add("--strategies", metavar="LIST", help="e.g. dp,ddp,balanced_dp:gpu0_bsz=2; see: python -m bench list strategies")
    add("--workloads", metavar="LIST", help="e.g. resnet50,bert_small; see: python -m bench list workloads")
    add(
        "--workload",
        metavar="SPEC",
        action="append",
        default=[],
        help="a model of your own, may be given several times: FILE.py:CLASS, MODULE:CLASS, torchvision:resnet18, "
        "transformers:BertForMaskedLM?num_hidden_layers=2 or transformers:CONFIG_FOLDER; see docs/workloads.md",
    )
    add(
        "--global-batch-size",
        metavar="LIST",
        help="samples per optimizer step over all devices, accumulation included, e.g. 256,512",
    )
    add("--batch-per-device", metavar="LIST", help="derives the global batch size from the number of devices")
    add("--precision", metavar="NAME", help="fp32, tf32, bf16 or fp16; default: the preset's")
    add("--levers", metavar="LIST", help="e.g. accumulation_steps=4,compile=model; see: python -m bench list levers")
    add(
        "--sweeps",
        metavar="LIST",
        help="scenarios that are measured only when asked for, e.g. load_balance (with strategies of its own), "
        "scaling or max_batch; so is one whose file is named, and --preset full measures all of them",
    )
    add("--data", metavar="KIND", help="synthetic or real; default: real MNIST, synthetic images and text")
    add("--data-root", metavar="DIR", type=Path, help="your own data: folders mnist/, images/, text/, or one of them")
    add("--launches", metavar="N", type=_number, help="launches of each case; default: the preset's")
    add("--rounds", metavar="N", type=_number, help="measured rounds of each launch; default: until --interval-target")
    add(
        "--interval-target",
        metavar="PERCENT",
        help="a launch measures until the 95%% interval of its rounds' median is this narrow to either side, or the "
        "preset's budget is spent, e.g. 0.5%%; default: 1%%",
    )
    add("--launch-timeout", metavar="SECONDS", type=float, help="time limit of one launch; default: the preset's")
    add(
        "--memory-limit",
        metavar="SIZE",
        help="give each device only so much memory in every launch, to stand in for a smaller card, e.g. 24GiB; on CPU "
        "what a worker may take besides its imports; speeds are measured with it on",
    )
    add("--run-id", metavar="ID", help="name of the run; default: date, time and four random digits")
    add(
        "--results", metavar="DIR", type=Path, default=DEFAULTS.results, help="where tables are kept (default: results)"
    )
    add("--reports", metavar="DIR", type=Path, default=DEFAULTS.reports, help="where the page goes (default: reports)")
    add(
        "--seed",
        metavar="N",
        type=int,
        default=DEFAULTS.seed,
        help="of the order, the models and the data (default: 0)",
    )
    add(
        "--dry-run",
        action="store_true",
        help="show the cases, the expected time and where it would write; measure nothing",
    )


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def nearest_option(typed: Iterable[object], known: Collection[str]) -> str | None:
    """What an option that is not among the `known` was perhaps meant to be; None where none is near to one of them."""
    names = [str(word).partition("=")[0] for word in typed]
    for name in names:
        near = get_close_matches(name, known, 1, 0.8) if name.startswith("--") and name not in known else []
        if near:
            return f"{name}: did you mean {near[0]}?"
    return None


def read_options(namespace: Any) -> RunOptions:
    """The options of a run out of what pytest or argparse parsed."""
    return RunOptions(
        preset=namespace.preset,
        device_type=namespace.device_type,
        devices=namespace.devices,
        strategies=namespace.strategies,
        workloads=namespace.workloads,
        own_workloads=tuple(namespace.workload),
        global_batch_size=namespace.global_batch_size,
        batch_per_device=namespace.batch_per_device,
        precision=namespace.precision,
        levers=namespace.levers,
        sweeps=namespace.sweeps,
        data=namespace.data,
        data_root=namespace.data_root,
        launches=namespace.launches,
        rounds=namespace.rounds,
        interval_target=namespace.interval_target,
        launch_timeout=namespace.launch_timeout,
        memory_limit=namespace.memory_limit,
        run_id=namespace.run_id,
        results=namespace.results,
        reports=namespace.reports,
        seed=namespace.seed,
        dry_run=namespace.dry_run,
    )
