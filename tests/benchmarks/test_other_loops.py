"""The comparison with other loops compares the same work, and its figures are what they are called."""

from __future__ import annotations

import importlib.util
import math
import re

import pytest
import torch
from torch import Tensor, nn

from bench.errors import BenchError
from bench.measuring.batches import StepBatch
from bench.schema import PARITY_LIMIT
from bench.workloads import Batch
from tests.benchmarks.four_loops import ACCELERATE, BY_HAND, FABRIC, MAKERS, SUITE, Loop, Trained, apart, trained
from tests.benchmarks.other_loops import (
    ORDERS,
    Launch,
    launch_of,
    main,
    missing,
    ratio_to_suite,
    refuse_different_work,
    summary,
)
from tests.benchmarks.test_benchmarks import printed

ABSENT = missing()
needs_libraries = pytest.mark.skipif(ABSENT is not None, reason=ABSENT or "all are installed")


def vectors(losses: list[float], gradients: list[float], weights: list[float]) -> Trained:
    known = (torch.tensor(values) for values in (losses, gradients, weights))
    return Trained(**dict(zip(("losses", "gradients", "weights"), known, strict=True)), start=torch.ones(2))


def toy(factor: float) -> Loop:
    """One linear layer under Adam, which divides a factor in the gradients out again."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def step(batch: StepBatch) -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.dropout(model(batch.micro_batches[0].args[0])).square().sum()
        (loss * factor).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss

    return Loop(step=step, module=model)


def launch(**rounds: list[float]) -> Launch:
    return Launch(settings={}, apart={}, rounds={name.replace("_", " "): values for name, values in rounds.items()})


def test_distances_are_relative_to_the_reference() -> None:
    reference = vectors([3.0, 4.0], [6.0, 8.0], [4.0, 5.0])  # norms 5 and 10; the weights went 5 far from (1, 1)
    found = apart(vectors([3.0, 4.5], [6.0, 9.0], [4.0, 6.0]), reference)
    assert found == pytest.approx({"losses": 0.1, "gradients": 0.1, "weights": 0.2})
    assert apart(vectors([3.0, 4.0], [6.0, 8.0, 0.0], [4.0, 5.0]), reference)["gradients"] == math.inf


def test_a_wrong_factor_is_seen_under_adam_and_refused() -> None:
    torch.manual_seed(1)
    batches = [StepBatch(micro_batches=(Batch((torch.randn(5, 4),), {}, None),), weight=5.0) for _ in range(3)]
    reference = trained(toy(1.0), batches, seed=7)
    same = apart(trained(toy(1.0), batches, seed=7), reference)
    assert same == {"losses": 0.0, "gradients": 0.0, "weights": 0.0}
    refuse_different_work({"x": same})
    wrong = apart(trained(toy(2.0), batches, seed=7), reference)
    assert wrong["gradients"] == pytest.approx(1.0, abs=0.01) and wrong["weights"] < 1e-4
    with pytest.raises(BenchError, match="x does not train what the loop by hand trains: gradients by 1.0e"):
        refuse_different_work({"y": same, "x": wrong})


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(BenchError, match="losses by inf"):
        refuse_different_work({"x": {"losses": math.nan, "gradients": 0.0, "weights": 0.0}})


def test_every_loop_is_once_in_each_place_and_once_after_each_other() -> None:
    assert all(sorted(column) == list(range(len(MAKERS))) for column in zip(*ORDERS, strict=True))
    followed = [pair for order in ORDERS for pair in zip(order, order[1:], strict=False)]
    assert len(set(followed)) == len(followed) == len(MAKERS) * (len(MAKERS) - 1)


def test_a_launch_counts_its_worst_distance_and_its_slowest_rank() -> None:
    first = [{"settings": {"x": "s"}, "apart": {"x": {"losses": value}}} for value in (1e-7, 3e-7)]
    found = launch_of(first, [{"x": [1.0, 4.0]}, {"x": [2.0, 3.0]}])  # type: ignore[arg-type]
    assert (found.apart, found.rounds) == ({"x": {"losses": 3e-7}}, {"x": [2.0, 4.0]})


def test_a_ratio_is_the_median_of_turns_averaged_over_launches() -> None:
    one = launch(suite=[1.0, 2.0, 1.0], by_hand=[2.0, 4.0, 9.0])  # 2, 2, 9
    other = launch(suite=[2.0, 1.0, 1.0], by_hand=[1.0, 8.0, 8.0])  # 0.5, 8, 8
    ratio = ratio_to_suite([one, other], BY_HAND)
    assert ratio.value == pytest.approx(4.0)  # of 2 and 8
    # t(0.975, 1) x s / sqrt(2), with s = ln(4) / sqrt(2)
    assert ratio.high == pytest.approx(4.0 * math.exp(12.7062047 * math.log(4) / 2))


def test_one_launch_has_no_interval() -> None:
    rounds = {SUITE: [1.0], BY_HAND: [1.1], ACCELERATE: [1.2], FABRIC: [1.3]}
    parts = {"losses": 0.0, "gradients": 2e-8, "weights": 0.0}
    text = summary([Launch(settings=dict.fromkeys(MAKERS, "s"), apart={FABRIC: parts}, rounds=rounds)], steps=2)
    assert "apart by at most 2.0e-08" in text and "suite       500.00 ms a step" in text
    assert "fabric      / suite  ratio 1.3000, too few launches for an interval" in text


def test_a_package_that_is_missing_is_named_with_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "lightning_fabric" else found("os"))
    with pytest.raises(SystemExit) as stopped:
        main(["--launches", "1"])
    assert stopped.value.code == 2
    assert "lightning-fabric not installed" in (said := capsys.readouterr().err)
    assert said.rstrip().endswith("pip install lightning-fabric")


def check_loops(output: str, settings: str) -> None:
    """Every loop is there with its settings, its step and, but for the suite, its ratio; all have trained alike."""
    print(output)
    (distance,) = re.findall(r"apart by at most ([\d.e+-]+)", output)
    assert float(distance) <= PARITY_LIMIT
    views = re.findall(r"(\w[\w ]*?) +gradient_as_bucket_view (\w+),", output)
    assert [name for name, _ in views] == list(MAKERS)
    assert all(view == "on" for name, view in views if name == SUITE or settings == "suite")
    steps = re.findall(r"(\w[\w ]*?) +([\d.]+) ms a step", output)
    assert [name for name, _ in steps] == list(MAKERS) and all(float(step) > 0 for _, step in steps)
    assert re.findall(r"(\w[\w ]*?) +/ suite  ratio [\d.]+,", output) == [name for name in MAKERS if name != SUITE]


@needs_libraries
def test_prints_each_loop_with_its_settings_and_ratio() -> None:
    numbers = ("--launches", "1", "--turns", "1", "--steps", "1", "--global-batch-size", "2")
    check_loops(printed("other_loops", *numbers, "--settings", "suite"), "suite")


@needs_libraries
@pytest.mark.slow
def test_two_launches_have_an_interval() -> None:
    output = printed("other_loops", "--launches", "2", "--turns", "4", "--steps", "1")
    check_loops(output, "own")
    ratios = re.findall(r"ratio ([\d.]+), 95 % interval ([\d.]+) to ([\d.]+)", output)
    assert len(ratios) == len(MAKERS) - 1
    assert all(float(low) < float(ratio) < float(high) for ratio, low, high in ratios)
