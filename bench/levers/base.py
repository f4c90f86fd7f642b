"""What a lever is: a setting that works with any strategy, declared once. It knows no strategy and no workload.

A lever acts at the points below, in the order in which a launch reaches them; one that does nothing at a
point leaves the default. What cannot be honoured is refused with the reason, before the launch
(`unsupported`) or when the model is there (RefusedError), never left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

from torch import nn

from bench.errors import RefusedError, UsageError
from bench.registry import Registry
from bench.remaking import OptimizerFactory
from bench.schema import Case, NameValue

Blocks: TypeAlias = tuple[nn.Module, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What the devices here can do. bf16: in hardware; cannot_compile: why `torch.compile` does not work, or None."""

    bf16: bool = True
    cannot_compile: str | None = None


class Witness(Protocol):
    """Looks on in the first step's forward passes, whether there is something for a lever to act on."""

    def watching(self) -> AbstractContextManager[object]:
        """To be entered inside the wrapped module's forward; replicas enter it at the same time."""

    def refusal(self) -> str | None:
        """After the step: why the lever changed nothing, None where it did."""


class Lever:
    """A declared setting. `values` is empty for a whole number from `least`.

    changes: what it is expected to change; lossy: values that change the arithmetic on purpose; not_on and not_with:
    why it cannot be used on a device type, or with a strategy, by their names; needs: what else it asks for.
    """

    name: ClassVar[str]
    meaning: ClassVar[str]
    changes: ClassVar[str]
    default: ClassVar[str]
    values: ClassVar[tuple[str, ...]] = ()
    least: ClassVar[int] = 1
    lossy: ClassVar[frozenset[str]] = frozenset()
    order: ClassVar[int] = 0
    """Of changing the model: what is wrapped around others comes later."""
    not_on: ClassVar[Mapping[str, str]] = {}
    not_with: ClassVar[Mapping[str, str]] = {}
    needs: ClassVar[str] = ""

    @property
    def takes(self) -> str:
        """What it can be, in words."""
        return f"one of: {', '.join(self.values)}" if self.values else f"a whole number from {self.least}"

    def check(self, text: str) -> str:
        """`text` in its usual form if the lever can take it; UsageError says what it can."""
        if text in self.values:
            return text
        number = int(text) if not self.values and text.isascii() and text.isdecimal() else None
        if number is None or number < self.least:
            raise UsageError(f"{self.name} cannot be {text!r}; it is {self.takes}")
        return str(number)

    def of(self, case: Case) -> str:
        """The case's value."""
        return case.setting(self.name) or self.default

    def apply(self, case: Case, text: str) -> Case:
        """The case with this lever set to `text`; UsageError says what it can take."""
        value = self.check(text)
        if value == self.default:
            return case.without_settings(self.name)
        return case.with_settings(NameValue(name=self.name, value=value))

    def is_set(self, case: Case) -> bool:
        """Whether the case has it at another value than the default."""
        return self.of(case) != self.default

    def unsupported(self, case: Case, abilities: Abilities) -> str | None:
        """Why the case's value cannot be honoured on such devices or with its strategy; asked only where it is set."""
        reason = self.not_on.get(case.device_type) or self.not_with.get(case.strategy)
        return f"{self.name}={self.of(case)}: {reason}" if reason else None

    def set_process(self, case: Case) -> None:
        """Set the worker process's own switches, to the default too: the parity check trains both in one process."""

    def prepare_model(self, case: Case, model: nn.Module, blocks: Blocks) -> Blocks:
        """Change a new model on its device, before it is wrapped; the workload's blocks as they are in it then."""
        return blocks

    def prepare_batch(self, case: Case, batch: Any) -> Any:
        """A batch in host memory as it is to be kept there; not timed."""
        return batch

    def optimizer(self, case: Case, make: OptimizerFactory) -> OptimizerFactory:
        """What makes the optimizer."""
        return make

    def refusal(self, case: Case, error: Exception) -> str | None:
        """Why `error`, raised in training, means that the lever cannot be had with this model; None for others."""
        return None

    def witness(self, case: Case) -> Witness | None:
        """Who looks on in the first step; asked only where the lever is set."""
        return None


def refuse_uncalled(lever: str, modules: Iterable[nn.Module]) -> None:
    """RefusedError for modules without a forward, as lists of modules are: nobody calls them."""
    without = [type(module).__name__ for module in modules if type(module).forward is nn.Module.forward]
    if without:
        raise RefusedError(
            f"{lever} acts where a module is called, and nobody calls a {without[0]}, which is among the workload's "
            "blocks; name the modules in it"
        )


registry: Registry[Lever] = Registry("lever", "bench.levers")

LeverClass = TypeVar("LeverClass", bound=type[Lever])


def register(cls: LeverClass) -> LeverClass:
    """Class decorator: make a lever known under its `name`."""
    registry.add(cls.name, cls())
    return cls


def set_levers(case: Case) -> Sequence[Lever]:
    """The levers that the case has at another value than their default, by name."""
    return [lever for lever in registry if lever.is_set(case)]


def unsupported(case: Case, abilities: Abilities) -> str | None:
    """Why the case's levers cannot all be honoured, None when they can."""
    return next((reason for lever in set_levers(case) if (reason := lever.unsupported(case, abilities))), None)


def is_lossy(case: Case) -> bool:
    """The case's levers change the arithmetic, so that its parity error gets no verdict."""
    return any(lever.of(case) in lever.lossy for lever in registry)


def without_loss(case: Case) -> Case:
    """The case with every lossy lever at its default."""
    for lever in registry:
        if lever.of(case) in lever.lossy:
            case = lever.apply(case, lever.default)
    return case


def set_process(case: Case) -> None:
    """Set this process's switches as the case's levers say, those at their default too."""
    for lever in registry:
        lever.set_process(case)


def prepare_model(case: Case, model: nn.Module, blocks: Blocks) -> Blocks:
    """Change a new model on its device as the case's levers say; the blocks as they are in it then.

    RefusedError where a lever finds nothing to act on.
    """
    for lever in sorted(set_levers(case), key=lambda lever: lever.order):
        blocks = lever.prepare_model(case, model, blocks)
    return blocks


def prepare_batch(case: Case, batch: Any) -> Any:
    """A batch in host memory as the case's levers want it kept there."""
    for lever in set_levers(case):
        batch = lever.prepare_batch(case, batch)
    return batch


def optimizer_factory(case: Case, make: OptimizerFactory) -> OptimizerFactory:
    """What makes the optimizer that the case's levers ask for."""
    for lever in set_levers(case):
        make = lever.optimizer(case, make)
    return make


def refusal(case: Case, error: Exception) -> str | None:
    """Why `error` means that one of the case's levers cannot be had with this model, None where it does not."""
    return next((reason for lever in set_levers(case) if (reason := lever.refusal(case, error))), None)


def witnesses(case: Case) -> list[Witness]:
    """Who looks on in the first step."""
    return [witness for lever in set_levers(case) if (witness := lever.witness(case)) is not None]
