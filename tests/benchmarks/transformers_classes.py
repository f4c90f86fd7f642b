"""Which model classes of transformers can be measured? Every one is tried, each in a process of its own.

    python -m tests.benchmarks.transformers_classes [--jobs 1] [--only PATTERN] [--every N] [--limit-seconds 60]
        [--json FILE]

A class *adapts* when `--workload transformers:CLASS` finds what to give it. It has *trained* when a small one of its
kind (two layers, 64 wide, by overrides that any user could type) took a real forward, loss and backward on the
CPU. *exact* is a loss of two samples that is the sum of each alone, in evaluation: every strategy rests on that.
"""

from __future__ import annotations

import argparse
import collections
import inspect
import json
import multiprocessing
import re
import resource
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench.errors import UsageError
from bench.workloads import Workload, find
from bench.workloads._adapters import configs
from bench.workloads._adapters.inputs import reserved

GIB = 2**30
MEMORY_BYTES = 6 * GIB
MOST_PARAMETERS = 100_000_000
"""Of a model that takes a real step here."""
DEPTH = {
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_decoder_layers", "num_encoder_layers", "depth", "num_experts_per_tok"), 2),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts"), 4),
}
WIDTH = {
    **dict.fromkeys(("hidden_size", "out_hidden_size", "d_model", "n_embd", "projection_dim", "embed_dim", "dim"), 64),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "ffn_dim"), 128),
    "moe_intermediate_size": 64,
    "upsample_initial_channel": 32,
    "flow_size": 16,
}
HEADS = {
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 4),
    "decoder_attention_heads": 4,
}
ROTATED = {"hidden_size": 256, "out_hidden_size": 256, "num_attention_heads": 2, "num_key_value_heads": 1}
"""Heads of 128: what sections of positions (time, height, width) are made for."""
HEAD = {"num_key_value_heads": 2, "head_dim": 16, "d_kv": 16, "rotary_dim": 8}
BODY = {**DEPTH, **WIDTH}
SMALLER: tuple[dict[str, int], ...] = (
    {**BODY, **HEADS, **HEAD},
    {**BODY, **HEADS},
    {**BODY, **HEADS, **ROTATED},
    BODY,
    DEPTH,
    {},
)
"""Fields that make a model small, smallest first; what does not fit one class fits another."""
LEAST_VOCABULARY = 512


def classes(pattern: str) -> list[str]:
    """Names of the model classes that can be built and called."""
    import transformers

    names = [name for name in dir(transformers) if name[:1].isupper() and not name.startswith("Auto")]
    return [name for name in names if re.search(pattern, name) and configs.class_or_none(name) is not None]


def overrides(name: str, fields: dict[str, int]) -> str:
    """What makes a small model of a class, as it would be typed: every field that has a number to make smaller."""
    config = configs.made(configs.model_class(name).config_class, {})
    typed = {}
    for path, part in configs.parts(config):
        least = max([LEAST_VOCABULARY, *(number + 1 for number in reserved(config))])
        for key, small in {**fields, "vocab_size": least}.items():
            full = vars(part).get(part.attribute_map.get(key, key))
            if isinstance(full, int) and full > small:
                typed[f"{path}.{key}" if path else key] = small
    return "?" + "&".join(f"{key}={value}" for key, value in typed.items()) if typed else ""


def step(cls: type[Workload]) -> bool:
    """A forward, loss and backward of two samples; whether their loss is the sum of each alone."""
    workload = cls("quick")
    torch.manual_seed(0)
    model = workload.build()
    dataset = workload.dataset(workload.prepare("synthetic", None, Path("unused")), 0)
    samples = [dataset[0], dataset[1]]

    def loss(items: Sequence[Any]) -> torch.Tensor:
        batch = workload.collate(items)
        return workload.loss(model(*batch.args, **batch.kwargs), batch.targets)[0]

    model.train()
    total = loss(samples)
    total.backward()  # type: ignore[no-untyped-call]
    if not bool(total.isfinite()):
        raise ValueError(f"the loss is {float(total)}")
    moved = [p.grad is not None and bool(p.grad.isfinite().all()) and bool(p.grad.any()) for p in model.parameters()]
    if not any(moved):
        raise ValueError("no parameter has a gradient")
    model.eval()
    with torch.no_grad():
        together, apart = loss(samples), loss(samples[:1]) + loss(samples[1:])
    return bool(torch.isclose(together, apart, rtol=1e-3))


def small_ones(name: str) -> Iterator[str]:
    """Addresses of smaller models of a class, smallest first, and at last the class as it is."""
    yield from dict.fromkeys(f"transformers:{name}{overrides(name, fields)}" for fields in SMALLER)


def looked_at(name: str) -> dict[str, Any]:
    """What becomes of a class: refused (with the reason), meta (adapts, but no small one trained), or trained."""
    try:
        cls: Any = find(f"transformers:{name}")
    except UsageError as error:
        return {"outcome": "refused", "reason": str(error)}
    plan = cls.plans["quick"]
    found = {"task": plan.task.text, "inputs": list(plan.inputs), "tried": plan.tried, "alone": plan.alone}
    problems = []
    for address in small_ones(name):
        try:
            small: Any = find(address)
            if (parameters := _parameters(small)) > MOST_PARAMETERS:
                problems.append(f"no small one: {parameters:,} parameters")
                continue
            exact = step(small)
            same = small.plans["quick"].inputs.keys() == plan.inputs.keys()
            return {**found, "outcome": "trained", "exact": exact, "same": same, "address": address}
        except Exception as error:
            problems.append(f"{type(error).__name__}: {configs.one_line(error)}")
    return {**found, "outcome": "meta", "reason": problems[0], "problems": problems}


def _parameters(cls: Any) -> int:
    with torch.device("meta"):
        model: nn.Module = cls("quick").build()
    return sum(parameter.numel() for parameter in model.parameters())


def child(name: str, pipe: Connection) -> None:
    """The child's part: look at a class within the memory there is for it."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES,) * 2)
    try:
        with configs.silence():
            pipe.send(looked_at(name))
    except BaseException as error:
        pipe.send({"outcome": "fault", "reason": f"{type(error).__name__}: {error}"})


def look_at_all(names: Sequence[str], jobs: int, limit_seconds: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each class and what becomes of it; never more than `jobs` at once."""
    fork = multiprocessing.get_context("fork")
    waiting = list(reversed(names))
    running: dict[str, tuple[Any, Connection, float]] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop()
            ours, theirs = fork.Pipe(duplex=False)
            process = fork.Process(target=child, args=(name, theirs))
            process.start()
            theirs.close()
            running[name] = (process, ours, time.monotonic())
        for name, (process, pipe, started) in list(running.items()):
            late = time.monotonic() - started > limit_seconds
            if not (pipe.poll() or late or process.exitcode is not None):
                continue
            try:
                result = pipe.recv() if pipe.poll() else {"outcome": "fault", "reason": "too slow" if late else "ended"}
            except EOFError:
                result = {"outcome": "fault", "reason": f"ended with exit status {process.exitcode}"}
            process.kill()
            process.join()
            del running[name]
            yield name, {**result, "seconds": round(time.monotonic() - started, 1)}
        time.sleep(0.02)


KINDS = (
    ("needs a library that is not installed", "requires the|ImportError|ModuleNotFound"),
    ("its configuration has no usable default", "cannot be built at its default|refuses being made without"),
    ("needs an input that is not made here", "which is not made here|does not tell the shape"),
    ("no output has the samples in dimension 0", "returns nothing"),
    ("its forward does not take what is made", "does not take what is made"),
)


def kind_of(result: dict[str, Any]) -> str:
    """Why a class did not train, in one of a few kinds."""
    if result["outcome"] == "meta":
        real = [problem for problem in result["problems"] if not problem.startswith(("UsageError", "no small one"))]
        return "a small one failed in its step" if real else "no small configuration that fits"
    reason = result["reason"]
    return next((kind for kind, pattern in KINDS if re.search(pattern, reason)), reason[:60])


def summary(results: dict[str, dict[str, Any]]) -> str:
    """The counts, and what did not train by its kind."""
    import transformers

    count = collections.Counter(result["outcome"] for result in results.values())
    trained = [result for result in results.values() if result["outcome"] == "trained"]
    inexact = [name for name, result in results.items() if result["outcome"] == "trained" and not result["exact"]]
    alone = sum(result["alone"] for result in results.values() if "alone" in result)
    stand_in = sum(result["task"].startswith("stand-in") for result in results.values() if "task" in result)
    lines = [
        f"transformers {transformers.__version__}, torch {torch.__version__}",
        f"classes          {len(results)}",
        f"adapt            {count['trained'] + count['meta']}; {stand_in} by the stand-in, {alone} on text alone",
        f"  trained        {count['trained']}, of them exact {len(trained) - len(inexact)}",
        f"  not trained    {count['meta']}",
        f"refused          {count['refused']}",
        f"faults           {count['fault']}",
        f"not exact: {', '.join(inexact) or 'none'}",
    ]
    for outcome in ("refused", "meta", "fault"):
        kinds = collections.defaultdict(list)
        for name, result in results.items():
            if result["outcome"] == outcome:
                kinds[kind_of(result)].append(name)
        for kind, names in sorted(kinds.items(), key=lambda item: -len(item[1])):
            few = names[:: max(1, len(names) // 4)][:5]
            lines.append(
                f"{outcome}, {len(names)}: {kind} ({', '.join(few)}{', ...' if len(few) < len(names) else ''})"
            )
    return "\n".join(lines)


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=inspect.cleandoc(__doc__).splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="a regular expression that a class name must match")
    parser.add_argument("--every", type=int, default=1, help="look at every n-th class alone")
    parser.add_argument("--limit-seconds", type=float, default=60)
    parser.add_argument("--json", type=Path, help="a file for what became of each class; those that trained stay")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    results: dict[str, dict[str, Any]] = {}
    if options.json and options.json.exists():
        stored = json.loads(options.json.read_text())
        results = {name: result for name, result in stored.items() if result["outcome"] == "trained"}
    names = [name for name in classes(options.only)[:: options.every] if name not in results]
    for number, (name, result) in enumerate(look_at_all(names, options.jobs, options.limit_seconds), start=1):
        results[name] = result
        print(f"{number}/{len(names)} {name}: {result['outcome']} {result.get('reason', '')}"[:300], file=sys.stderr)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1))
    print(summary(results))


if __name__ == "__main__":
    main()
