"""What `dp` and `balanced_dp` have in common: one process that scatters a batch over replicas and gathers."""

from __future__ import annotations

import math
import traceback
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bench.errors import RefusedError, in_short, text_of
from bench.schema import Case
from bench.strategies._graph import edge_of, edges_behind
from bench.strategies.base import Context, LossCheck, Option, StepLoss, Strategy
from bench.structure import is_compiled, map_tensors, tensors_of

LOSS_ON = Option(
    name="loss_on",
    default="device0",
    values=("device0", "replica"),
    meaning="compute the loss on the output gathered on the first device, or inside each replica",
)
# Relative difference that rounding does not make.
SUMS_APART = {torch.float64: 1e-6, torch.float32: 1e-5}
# How the types of plain numbers end what is said of an output that cannot be gathered, by torch and here.
PLAIN_NUMBERS = ("'int'", "'float'", "type int", "type float")
MOST_SHAPES = 3
GATHER_THE_LOSS = "loss_on=replica, which gathers the loss alone"
# What torch.cat, and the gather of CUDA tensors, say where only dimension 0 may differ.
UNJOINED = ("Sizes of tensors must match except in dimension 0", "Gather got an input of invalid size")


class ReplicaStrategy(Strategy):
    """One process with a replica per device; on CPU, host replicas stand in for devices."""

    one_process = True
    scatters = True
    whole_parameters = False

    def emulated(self, case: Case) -> bool:
        return case.device_type == "cpu"

    def loss_inside(self, case: Case) -> bool:
        return self.option(case, LOSS_ON.name) == "replica"

    def refusal(self, error: Exception, wrapped: nn.Module | None) -> str | None:
        return super().refusal(error, wrapped) or replica_refusal(error, self.name) or _compiled_refusal(error, wrapped)

    def loss_refusal(self, output: Any, samples: int, error: Exception) -> str | None:
        shapes = _shapes_without(samples, output)
        return shapes and (
            f"DataParallel joins the replicas' outputs along dimension 0, and for {samples} samples that gives tensors "
            f"of the shapes {shapes}, of which the loss fails ({in_short(error)}); use {self.name}:{GATHER_THE_LOSS}"
        )

    def join_refusal(self, case: Case, output: Any, samples: int) -> str | None:
        shapes = None if self.loss_inside(case) else _shapes_without(samples, output)
        return shapes and (
            f"DataParallel joins the replicas' outputs along dimension 0, where this model has no samples (of "
            f"{samples} it makes the shapes {shapes}); use {self.name}:{GATHER_THE_LOSS}"
        )

    def loss_check(self, model: nn.Module, wrapped: nn.Module, context: Context) -> LossCheck | None:
        """Refuses, in the first step, a mean over replicas that do not take equally many samples."""
        chunks = [size for size in self.chunk_sizes(context.case) if size]
        if len(set(chunks)) < 2:
            return None
        looks = iter([True])

        def check(step: StepLoss) -> None:
            if next(looks, False) and (difference := mean_of_replicas(step, chunks)):
                raise RefusedError(f"{difference}; return one value per sample, or use {self.name}:loss_on=replica")

        return check


def _shapes_without(samples: int, output: Any) -> str | None:
    """The shapes of an output's tensors; None where one has so many samples in dimension 0."""
    shapes = [tuple(tensor.shape) for tensor in tensors_of(output)]
    if any(shape[:1] == (samples,) for shape in shapes):
        return None
    return f"{', '.join(map(str, shapes[:MOST_SHAPES]))}{', ...' * (len(shapes) > MOST_SHAPES)}"


def mean_of_replicas(step: StepLoss, chunks: Sequence[int]) -> str | None:
    """Where the loss of what was gathered is not the sum of the replicas' losses, because each gave one number.

    A number of each replica is gathered to a vector of as many; unequal chunks hold more samples than that.
    """
    of_replicas = [tensor for tensor in tensors_of(step.output) if tensor.shape == (len(chunks),)]
    if not edges_behind([step.loss_sum]) & {edge_of(vector) for vector in of_replicas if vector.requires_grad}:
        return None

    def of_replica(number: int, tensor: Tensor) -> Tensor:
        return tensor[number] if tensor.shape == (len(chunks),) else torch.split(tensor, list(chunks))[number]

    try:
        with torch.no_grad():
            pieces = [map_tensors(partial(of_replica, i), (step.output, step.targets)) for i in range(len(chunks))]
            losses = [float(step.loss(output, targets)[0]) for output, targets in pieces]
    except Exception:  # an output that has no samples: what a part of it would give is not known
        return None
    whole, total = float(step.loss_sum), sum(losses)
    if math.isclose(whole, total, rel_tol=SUMS_APART.get(step.loss_sum.dtype, 1e-3)):
        return None
    return (
        f"the loss of what the replicas gave is {whole:.6g}, but their own losses add up to {total:.6g}: it takes the "
        f"mean of one number a replica, and they take {', '.join(map(str, chunks))} samples"
    )


def replica_refusal(error: Exception, name: str) -> str | None:
    """Why DataParallel, torch's or the suite's own, cannot take a model that fails so; None for any other failure.

    torch raises a replica's exception again under its own type, with the text of where it was raised.
    `name` is the strategy's, for the remedy.
    """
    text = text_of(error)
    if isinstance(error, TypeError) and ("DataParallel cannot gather" in text or _raised_in(error, "gather_map")):
        said = text if "DataParallel cannot gather" in text else f"DataParallel cannot gather this output ({text})"
        said = said.partition(";")[0]
        if any(word in said for word in PLAIN_NUMBERS):
            return (
                f"{said}: a plain number, such as a sum over the model's own parameters(), of which a replica has "
                "none; read its weights by their names, or leave the number out of the output"
            )
        return f"{said}; use {name}:{GATHER_THE_LOSS}"
    if isinstance(error, RuntimeError) and any(words in text for words in UNJOINED):
        return (
            f"DataParallel joins the replicas' outputs along dimension 0, where this model has no samples "
            f"({in_short(error)}); use {name}:{GATHER_THE_LOSS}"
        )
    if isinstance(error, StopIteration) or (isinstance(error, RuntimeError) and "StopIteration" in text):
        return (
            "the model reads its own parameters() in its forward, as next(self.parameters()) does, and a replica has "
            "none: its weights are plain attributes; read device and dtype from an input or from one weight by its name"
        )
    return None


def _compiled_refusal(error: Exception, wrapped: nn.Module | None) -> str | None:
    """Why replicas of compiled modules fail; None where the model holds none, or fails otherwise."""
    compiled = wrapped is not None and any(map(is_compiled, wrapped.modules()))
    if not compiled or not (isinstance(error, AttributeError) or "RecursionError" in f"{type(error)}{text_of(error)}"):
        return None
    return (
        "DataParallel cannot replicate a module that torch.compile has wrapped "
        f"({in_short(error)}); build the model without it, or use ddp"
    )


def _raised_in(error: Exception, function: str) -> bool:
    """Whether a function of this name in torch's scatter_gather.py was at work."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(frame.name == function and frame.filename.endswith("scatter_gather.py") for frame in frames)
