"""One DDP step written four ways, for `other_loops`: this suite's, by hand, with Accelerate, with Lightning Fabric.

Each builds the same model from the same seed, takes the workload's own optimizer and loss, and wraps the model over the
process group that is there already. What goes to the device goes by each library's own function.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from bench import strategies
from bench.measuring.batches import StepBatch
from bench.measuring.building import built, seed_all
from bench.measuring.place import Place
from bench.measuring.step import Trainer
from bench.schema import Case
from bench.structure import map_tensors
from bench.workloads import Workload

SUITE, BY_HAND, ACCELERATE, FABRIC = "suite", "by hand", "accelerate", "fabric"
PACKAGES = {"accelerate": "accelerate", "lightning_fabric": "lightning-fabric"}
"""What the libraries are imported as, and what pip calls them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What all four train. alike: with the suite's settings of DDP in the place of each library's own."""

    workload: Workload
    case: Case
    place: Place
    seed: int
    alike: bool

    def model(self) -> nn.Module:
        seed_all(self.seed)
        return built(self.workload).train()

    def options(self) -> dict[str, Any]:
        """Of DDP, where they are not left at their defaults."""
        return {"gradient_as_bucket_view": True} if self.alike else {}

    def loss(self, output: Any, targets: Any, batch: StepBatch) -> tuple[Tensor, Tensor]:
        """The summed loss, and what to differentiate: DDP averages over the ranks, so that their number undoes it."""
        loss_sum, _ = self.workload.loss(output, targets)
        return loss_sum.detach(), loss_sum * (self.case.num_devices / batch.weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """step: trains a batch and returns a tensor whose first element is this rank's summed loss; module: DDP's."""

    step: Callable[[StepBatch], Tensor]
    module: nn.Module


def of_suite(setup: Setup) -> Loop:
    """What the suite times."""
    trainer = Trainer(
        workload=setup.workload,
        strategy=strategies.registry.get("ddp"),
        case=setup.case,
        devices=setup.place.devices,
        mesh=setup.place.mesh,
        seed=setup.seed,
    )
    return Loop(step=trainer.step, module=trainer.wrapped)


def by_hand(setup: Setup) -> Loop:
    """What torch's tutorials show."""
    device = setup.place.devices[0]
    model = DistributedDataParallel(setup.model().to(device), **setup.options())
    optimizer = setup.workload.optimizer(model.parameters())

    def step(batch: StepBatch) -> Tensor:
        args, kwargs, targets = map_tensors(lambda tensor: tensor.to(device), batch.micro_batches[0])
        optimizer.zero_grad()
        loss_sum, loss = setup.loss(model(*args, **kwargs), targets, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss_sum

    return Loop(step=step, module=model)


def of_accelerate(setup: Setup) -> Loop:
    """`prepare` and `accelerator.backward`; `send_to_device` is what its data loaders call."""
    from accelerate import Accelerator
    from accelerate.utils import DistributedDataParallelKwargs, send_to_device

    handlers = [DistributedDataParallelKwargs(**setup.options())] if setup.alike else None
    accelerator = Accelerator(cpu=True, kwargs_handlers=handlers)
    model = setup.model()
    model, optimizer = accelerator.prepare(model, setup.workload.optimizer(model.parameters()))

    def step(batch: StepBatch) -> Tensor:
        args, kwargs, targets = send_to_device(batch.micro_batches[0], accelerator.device)
        optimizer.zero_grad()
        loss_sum, loss = setup.loss(model(*args, **kwargs), targets, batch)
        accelerator.backward(loss)
        optimizer.step()
        return loss_sum

    return Loop(step=step, module=model)


def of_fabric(setup: Setup) -> Loop:
    """`setup`, `to_device` and `fabric.backward`."""
    from lightning_fabric import Fabric
    from lightning_fabric.plugins.environments import TorchElasticEnvironment
    from lightning_fabric.strategies import DDPStrategy

    fabric = Fabric(
        accelerator="cpu",
        devices=setup.case.num_devices,
        strategy=DDPStrategy(**setup.options()),
        plugins=[TorchElasticEnvironment()],  # else it would start processes of its own
    )
    fabric.launch()
    model = setup.model()
    wrapped, optimizer = fabric.setup(model, setup.workload.optimizer(model.parameters()))

    def step(batch: StepBatch) -> Tensor:
        args, kwargs, targets = fabric.to_device(batch.micro_batches[0])
        optimizer.zero_grad()
        loss_sum, loss = setup.loss(wrapped(*args, **kwargs), targets, batch)
        fabric.backward(loss)
        optimizer.step()
        return loss_sum

    return Loop(step=step, module=next(m for m in wrapped.modules() if isinstance(m, DistributedDataParallel)))


MAKERS = {SUITE: of_suite, BY_HAND: by_hand, ACCELERATE: of_accelerate, FABRIC: of_fabric}


def set_environment(rank: int, ranks: int, threads: int) -> None:
    """What torchrun would set, and both libraries read; the group is there, so that nobody calls the address.

    Without OMP_NUM_THREADS either library would choose a number of threads for the whole process.
    """
    said = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
        "OMP_NUM_THREADS": threads,
    }
    os.environ.update({name: str(value) for name, value in said.items()}, MASTER_ADDR="127.0.0.1")


def settings(module: nn.Module) -> str:
    """Of the DDP that was made, as torch keeps them."""
    assert isinstance(module, DistributedDataParallel), type(module)
    named = ("gradient_as_bucket_view", "broadcast_buffers", "static_graph", "find_unused_parameters")
    said = [f"{name} {'on' if getattr(module, name) else 'off'}" for name in named]
    return ", ".join([*said, f"buckets of {module.bucket_bytes_cap / 2**20:g} MiB"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """After a few steps: their losses, the last one's gradients, the weights and what they were, each as one vector."""

    losses: Tensor
    gradients: Tensor
    weights: Tensor
    start: Tensor


def trained(loop: Loop, batches: Sequence[StepBatch], seed: int) -> Trained:
    """Train each batch once. Dropout draws from the generator that `seed` sets, in every loop alike."""
    start = _vector(loop.module)
    torch.manual_seed(seed)
    losses = torch.stack([loop.step(batch).detach().flatten()[0] for batch in batches])
    gradients = torch.cat([p.grad.flatten() for p in loop.module.parameters() if p.grad is not None])
    return Trained(losses=losses, gradients=gradients, weights=_vector(loop.module), start=start)


def apart(found: Trained, reference: Trained) -> dict[str, float]:
    """How far losses, gradients and way of the weights are from the reference's, relative to those (Euclidean norms).

    Gradients besides weights, since Adam's step hides a factor in them.
    """
    parts = {
        "losses": (found.losses, reference.losses, reference.losses),
        "gradients": (found.gradients, reference.gradients, reference.gradients),
        "weights": (found.weights, reference.weights, reference.weights - reference.start),
    }
    if any(one.shape != other.shape for one, other, _ in parts.values()):
        return dict.fromkeys(parts, float("inf"))  # other parameters, or another number of them with a gradient
    return {name: float((one - other).norm() / whole.norm()) for name, (one, other, whole) in parts.items()}


def _vector(module: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
