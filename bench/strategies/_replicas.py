"""What `dp` and `balanced_dp` have in common: one process that scatters a batch over replicas and gathers."""

from __future__ import annotations

import traceback
from typing import Any

from torch import Tensor, nn

from bench.errors import RefusedError
from bench.schema import Case
from bench.strategies._graph import edge_of, edges_behind
from bench.strategies.base import Option, Strategy
from bench.structure import tensors_of

LOSS_ON = Option(
    name="loss_on",
    default="device0",
    values=("device0", "replica"),
    meaning="compute the loss on the output gathered on the first device, or inside each replica",
)
# How the types of plain numbers end what is said of an output that cannot be gathered, by torch and here.
PLAIN_NUMBERS = ("'int'", "'float'", "type int", "type float")
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
        return super().refusal(error, wrapped) or replica_refusal(error)

    def check_loss(self, case: Case, output: Any, loss_sum: Tensor) -> None:
        """Refuses a loss made of one number a replica: its mean is not that of the batch where chunks differ."""
        chunks = [size for size in self.chunk_sizes(case) if size]
        if len(set(chunks)) < 2:
            return
        # What is gathered from numbers is a vector of one for each replica, and there are more samples.
        vectors = [tensor for tensor in tensors_of(output) if tensor.shape == (len(chunks),) and tensor.requires_grad]
        if vectors and edges_behind([loss_sum]) & {edge_of(vector) for vector in vectors}:
            raise RefusedError(
                f"the loss is made of one number a replica, as if all took equally many samples, but they take "
                f"{', '.join(map(str, chunks))}; return one value per sample, or use {self.name}:loss_on=replica"
            )


def replica_refusal(error: Exception) -> str | None:
    """Why DataParallel, torch's or the suite's own, cannot take a model that fails so; None for any other failure.

    torch raises a replica's exception again under its own type, with the text of where it was raised.
    """
    text = str(error)
    if isinstance(error, TypeError) and ("DataParallel cannot gather" in text or _raised_in(error, "gather_map")):
        said = text if "DataParallel cannot gather" in text else f"DataParallel cannot gather this output ({text})"
        said = said.partition(";")[0]
        if any(word in said for word in PLAIN_NUMBERS):
            return (
                f"{said}: a plain number, such as a sum over the model's own parameters(), of which a replica has "
                "none; read its weights by their names, or leave the number out of the output"
            )
        return f"{said}; use loss_on=replica, which gathers the loss alone"
    if isinstance(error, RuntimeError) and any(words in text for words in UNJOINED):
        return (
            f"DataParallel joins the replicas' outputs along dimension 0, where this model has no samples "
            f"({text.splitlines()[0]}); use loss_on=replica, which gathers the loss alone"
        )
    if isinstance(error, StopIteration) or (isinstance(error, RuntimeError) and "StopIteration" in text):
        return (
            "the model reads its own parameters() in its forward, as next(self.parameters()) does, and a replica has "
            "none: its weights are plain attributes; read device and dtype from an input or from one weight by its name"
        )
    return None


def _raised_in(error: Exception, function: str) -> bool:
    """Whether a function of this name in torch's scatter_gather.py was at work."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(frame.name == function and frame.filename.endswith("scatter_gather.py") for frame in frames)
