"""What a strategy is: how devices cooperate. It knows no workload."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from bench.errors import RefusedError, UsageError, text_of
from bench.registry import Registry
from bench.remaking import OptimizerFactory
from bench.schema import Case

LOOKS = 3
"""The parity check has no more steps, and a timed launch has come to know all its batches."""
SYNC_BATCH_NORM_WORDS = ("only work with GPU modules", "expected input tensor to be on GPU")
BATCH_NORM_WORDS = "Expected more than 1 value per channel when training"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A setting that belongs to one strategy.

    `values` is empty for a whole number >= `least`; `words` are what it can be besides a number. lossy: values that
    change the arithmetic on purpose; not_on: why it cannot be set on a device type.
    """

    name: str
    default: str
    meaning: str
    values: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    least: int = 0
    lossy: frozenset[str] = frozenset()
    not_on: Mapping[str, str] = field(default_factory=dict)

    @property
    def takes(self) -> str:
        """What it can be, in words."""
        number = " or ".join([f"a whole number from {self.least}", *self.words])
        return f"one of: {', '.join(self.values)}" if self.values else number

    def check(self, text: str) -> str:
        """`text` in its usual form if the option can take it; UsageError lists what it can."""
        if text in (*self.values, *self.words):
            return text
        if self.values or not (text.isascii() and text.isdecimal()) or int(text) < self.least:
            raise UsageError(f"{self.name} cannot be {text!r}; it is {self.takes}")
        return str(int(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Where a model is wrapped.

    devices: those that this process drives (all of them for a one-process strategy);
    blocks: the workload's blocks inside the model; mesh: over all ranks, None without a process group;
    looks: how many steps `loss_check` may look at.
    """

    case: Case
    devices: tuple[torch.device, ...]
    blocks: tuple[nn.Module, ...]
    mesh: DeviceMesh | None = None
    looks: float = LOOKS


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoss:
    """A micro-batch between its forward and its backward pass.

    loss: the workload's, which made `loss_sum` of `output` and `targets`; reduces: after this micro-batch ranks reduce
    their gradients.
    """

    output: Any
    targets: Any
    loss_sum: Tensor
    loss: Callable[[Any, Any], tuple[Tensor, Tensor | float]]
    reduces: bool


LossCheck: TypeAlias = Callable[[StepLoss], None]


class Strategy(ABC):
    """How devices cooperate in a training step.

    The defaults describe a strategy with one process per device whose backward pass leaves
    the mean of the ranks' gradients; the training step multiplies the loss by `loss_scale`
    so that the mean becomes the sum over the global batch.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    one_process: ClassVar[bool] = False
    scatters: ClassVar[bool] = False
    """The wrapped module takes the whole micro-batch from the host and splits it itself."""
    whole_parameters: ClassVar[bool] = True
    """While a forward runs, the model's `parameters()` are all there, and whole."""
    hooks_see_averages: ClassVar[bool] = True
    """Hooks on a parameter, set once it is wrapped, are called with the gradient of all ranks."""
    copies_inputs: ClassVar[bool] = False
    """A block is called with copies of the containers that its caller gives it."""
    hides_parameters: ClassVar[bool] = False
    """While a forward runs, weights are plain attributes, which hide what is in the place of a parameter."""
    ranks_must_agree: ClassVar[bool] = False
    """Ranks that do different things hang or abort; `loss_check` finds them, in the steps that it looks at."""
    unscales_first: ClassVar[bool] = False
    """The GradScaler hears of other ranks' overflows in `unscale_` alone, which `step` leaves to a fused optimizer."""
    splits_optimizer: ClassVar[bool] = False
    """Each rank's optimizer has some of the parameters, whole ones."""
    options: ClassVar[tuple[Option, ...]] = ()

    def world_size(self, case: Case) -> int:
        """Number of worker processes."""
        return 1 if self.one_process else case.num_devices

    def loss_scale(self, case: Case) -> float:
        """Number of ranks over which the strategy averages gradients."""
        return float(self.world_size(case))

    def option(self, case: Case, name: str) -> str:
        """The case's value of one of this strategy's options, or its default."""
        declared = next(option for option in self.options if option.name == name)
        return case.setting(name) or declared.default

    def unsupported(self, case: Case) -> str | None:
        """Why this strategy cannot run the case at all, None when it can."""
        for option in self.options:
            value, reason = self.option(case, option.name), option.not_on.get(case.device_type)
            if value != option.default and reason is not None:
                return f"{option.name}={value}: {reason}"
        return None

    def is_lossy(self, case: Case) -> bool:
        """The case's options change the arithmetic, so that its parity error gets no verdict."""
        return any(self.option(case, option.name) in option.lossy for option in self.options)

    def without_loss(self, case: Case) -> Case:
        """The case with every lossy option at its default."""
        lossy = [option.name for option in self.options if self.option(case, option.name) in option.lossy]
        return case.without_settings(*lossy)

    def computes_in(self, case: Case) -> str:
        """The precision, in the lever's words, of most of the case's arithmetic; an autocast has the last word."""
        return case.precision

    def refusal(self, error: Exception, wrapped: nn.Module | None) -> str | None:
        """Why `error`, raised while wrapping or training, means that this strategy cannot take the model as it is.

        None for anything else: a fault stays an error. `wrapped` is None while wrapping.
        """
        if isinstance(error, RefusedError):
            return str(error)
        if isinstance(error, ValueError) and any(words in text_of(error) for words in SYNC_BATCH_NORM_WORDS):
            return f"SyncBatchNorm works on GPUs only ({error}); use BatchNorm on a CPU"
        if isinstance(error, ValueError) and BATCH_NORM_WORDS in text_of(error):
            return (
                "BatchNorm needs more than one value per channel in training, and a device got too few samples for "
                f"that ({str(error).splitlines()[-1]}); raise --global-batch-size"
            )
        return None

    def loss_refusal(self, output: Any, samples: int, error: Exception) -> str | None:
        """The same for an `error` of the workload's loss on the wrapped model's `output` for so many samples."""
        return None

    def join_refusal(self, case: Case, output: Any, samples: int) -> str | None:
        """Why what devices make of their shares cannot be put together to this `output` of so many samples, or None."""
        return None

    def chunk_sizes(self, case: Case) -> tuple[int, ...]:
        """Samples that each device takes of one micro-batch, in device order.

        Raises ValueError, naming the nearest batches that work, when the batch does not divide.
        """
        return equal_chunks(case)

    def parity_samples_per_device(self, case: Case) -> int:
        """Samples per device and micro-batch that a small check of the training needs, so that it splits as `case`."""
        return 2

    def emulated(self, case: Case) -> bool:
        """Host replicas stand in for devices."""
        return False

    def loss_inside(self, case: Case) -> bool:
        """The loss is computed inside the wrapped module, once per replica."""
        return False

    def follows_output(self, case: Case) -> bool:
        """The wrapper looks for the tensors in the module's output, to know when the backward pass begins."""
        return False

    def loss_check(self, model: nn.Module, wrapped: nn.Module, context: Context) -> LossCheck | None:
        """What to call before every backward pass; it raises RefusedError where this strategy would train wrong.

        model: what `wrap` was given, wrapped: what it returned. It looks at the next `context.looks` steps at most.
        """
        return None

    @abstractmethod
    def wrap(self, model: nn.Module, context: Context) -> nn.Module:
        """The module whose forward is called. The optimizer is built from it afterwards."""

    def optimizer(self, make: OptimizerFactory, wrapped: nn.Module) -> torch.optim.Optimizer:
        """The optimizer of the wrapped module; `make` is the workload's own."""
        return make(wrapped.parameters())

    def grad_scaler(self, device_type: str, init_scale: float) -> torch.amp.GradScaler:
        """What scales the loss in fp16, and skips steps whose gradients overflow on any rank."""
        return torch.amp.GradScaler(device_type, init_scale=init_scale)

    def synchronising(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[None]:
        """Around forward and backward of a micro-batch; `last` of those that are accumulated."""
        return nullcontext()

    def full_parameters(self, wrapped: nn.Module) -> Iterator[tuple[str, Tensor]]:
        """Names and whole parameters, as the unwrapped model names them.

        Every rank must run through all of it: where parameters are sharded it communicates.
        """
        for name, parameter in wrapped.named_parameters():
            yield name.removeprefix("module."), parameter.detach()


def equal_chunks(case: Case) -> tuple[int, ...]:
    """Equal shares of a micro-batch; ValueError names the nearest batches that divide."""
    unit = case.num_devices * case.accumulation_steps
    batch = case.global_batch_size
    if batch % unit:
        lower, upper = batch // unit * unit, (batch // unit + 1) * unit
        nearest = f"{lower} or {upper}" if lower else f"{upper}"
        over = f"{case.num_devices} devices"
        if case.accumulation_steps > 1:
            over += f" x {case.accumulation_steps} accumulation steps"
        raise ValueError(f"global_batch_size {batch} does not divide over {over}; use {nearest}")
    return (batch // unit,) * case.num_devices


def whole_micro_batch(case: Case) -> int:
    """Samples of one micro-batch; ValueError names the nearest global batches that divide."""
    steps, batch = case.accumulation_steps, case.global_batch_size
    if batch % steps:
        lower, upper = batch // steps * steps, (batch // steps + 1) * steps
        nearest = f"{lower} or {upper}" if lower else f"{upper}"
        raise ValueError(f"global_batch_size {batch} does not divide over {steps} accumulation steps; use {nearest}")
    return batch // steps


registry: Registry[Strategy] = Registry("strategy", "bench.strategies")

StrategyClass = TypeVar("StrategyClass", bound=type[Strategy])


def register(cls: StrategyClass) -> StrategyClass:
    """Class decorator: make a strategy known under its `name`."""
    registry.add(cls.name, cls())
    return cls
