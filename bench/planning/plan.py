"""The plan of a run: the cases that its options and this machine ask for.

A scenario asks `plan.comparison(workload)` for the main comparison's cases, or builds its own
with `plan.case(...)`. What cannot be honoured stays in the plan with the reason, and is
recorded as skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bench import levers, strategies, workloads
from bench.errors import UnknownNameError, UsageError
from bench.levers import Lever
from bench.measuring.machine import Machine
from bench.measuring.parity import exact_case, parity_case
from bench.planning import options as choose
from bench.planning.memory import choose_memory_limit
from bench.planning.options import RunOptions, StrategyChoice
from bench.planning.presets import Preset
from bench.schema import Case, NameValue
from bench.workloads import Workload

# Counts between one device and all of them at which the larger presets measure.
INTERMEDIATE_COUNTS = (2, 4, 8)
LOSS_ON_REPLICA = NameValue(name="loss_on", value="replica")
DATA_KINDS = ("synthetic", "real")
LONGEST_TIMEOUT_SECONDS = 7 * 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run will do, resolved against the machine it runs on."""

    options: RunOptions
    machine: Machine
    preset: Preset
    devices: tuple[int, ...]
    strategies: tuple[StrategyChoice, ...]
    workloads: tuple[str, ...]
    levers: tuple[tuple[Lever, str], ...]
    sweeps: tuple[str, ...]
    global_batch_sizes: tuple[int, ...]
    batches_per_device: tuple[int, ...]
    memory_limit_bytes: int | None = None
    """What `--memory-limit` gives each device."""

    @property
    def launches(self) -> int:
        return self.options.launches or self.preset.launches

    @property
    def size(self) -> str:
        """quick is a size as well as a preset; the others measure at real size."""
        return "quick" if self.preset.name == "quick" else "standard"

    @property
    def launch_timeout_seconds(self) -> float:
        return self.options.launch_timeout or self.preset.launch_timeout_seconds

    @property
    def own_workloads(self) -> list[str]:
        """The names of those that `--workload` brought in."""
        return [name for name in self.workloads if workloads.registry.get(name).address is not None]

    def comparison(self, name: str) -> list[Case]:
        """The main comparison of one workload: every strategy, at every batch that is compared."""
        if name not in self.workloads:
            return []
        cases = [case for choice in self.strategies for case in self._strategy_cases(name, choice)]
        return list(dict.fromkeys(cases))

    def case(self, workload: str, strategy: str, num_devices: int, global_batch_size: int) -> Case:
        """A case on the run's first `num_devices` devices, with the run's levers and data."""
        declared = workloads.registry.get(workload)
        data = self.options.data
        case = Case(
            workload=workload,
            strategy=strategy,
            device_type=self.machine.device_type,
            devices=self.devices[:num_devices],
            global_batch_size=global_batch_size,
            size=self.size,
            precision=self._default_precision(declared),
            data=None if data == declared.default_data else data,
        )
        for lever, text in self.levers:
            case = lever.apply(case, text)
        return case

    def _default_precision(self, workload: type[Workload]) -> str:
        wanted = workload.low_precision and self.preset.low_precision and self.machine.device_type == "cuda"
        return "bf16" if wanted and self.machine.abilities.bf16 else "fp32"

    def _strategy_cases(self, name: str, choice: StrategyChoice) -> Iterator[Case]:
        counts = [1] if choice.name == "single" else self.device_counts()
        for count in counts:
            for batch in self.batches(name, count, baseline=choice.name == "single"):
                yield from self.placements(name, choice, count, batch)

    def placements(self, name: str, choice: StrategyChoice, num_devices: int, batch: int) -> Iterator[Case]:
        """The case of a strategy with its options; with both placements of the loss, where the workload shows both."""
        case = self.case(name, choice.name, num_devices, batch).with_settings(*choice.settings)
        yield case
        takes_loss = any(option.name == LOSS_ON_REPLICA.name for option in strategies.registry.get(choice.name).options)
        both = workloads.registry.get(name).compare_loss_placements and not choice.settings
        if both and takes_loss and num_devices > 1:
            yield case.with_settings(LOSS_ON_REPLICA)

    def parity_cases(self, cases: Iterable[Case]) -> list[Case]:
        """The checks that `cases` need: one per way of training, and one without what is lossy, where that is."""
        wanted: dict[Case, None] = {}
        for case in cases:
            own = parity_case(case)
            wanted[exact_case(own)] = None
            wanted[own] = None
        return list(wanted)

    def device_counts(self) -> list[int]:
        """Numbers of devices to measure at: all of them, and those between if the preset says so."""
        total = len(self.devices)
        between = [count for count in INTERMEDIATE_COUNTS if count < total] if self.preset.intermediate_devices else []
        return [*between, total]

    def batches(self, name: str, count: int, *, baseline: bool = False) -> list[int]:
        """Global batches of a workload at a device count. The baseline runs at every batch it is compared with."""
        if self.global_batch_sizes:
            return list(self.global_batch_sizes)
        size = workloads.registry.get(name)(self.size).size
        per_device = list(self.batches_per_device) or ([size.batch_per_device] if size.batch_per_device else [])
        if not per_device:
            assert size.global_batch_size is not None
            return [size.global_batch_size]
        counts = [1, *self.device_counts()] if baseline else [count]
        return list(dict.fromkeys(batch * number for batch in per_device for number in counts))

    def expected_seconds(self, timing_launches: int, parity_launches: int) -> float:
        """Rough time of a plan (s), from the preset; a run corrects it as it goes."""
        return timing_launches * self.preset.launch_seconds + parity_launches * self.preset.launch_seconds / 2


def make_plan(options: RunOptions, machine: Machine) -> Plan:
    """Check every option against the machine; UsageError says what is wrong with the first that is."""
    if options.data is not None and options.data not in DATA_KINDS:
        raise UnknownNameError("data", options.data, DATA_KINDS)
    if options.global_batch_size is not None and options.batch_per_device is not None:
        raise UsageError("--global-batch-size and --batch-per-device exclude each other; give one of them")
    _check_numbers(options)
    preset = choose.choose_preset(options, machine)
    devices = choose.choose_devices(options, machine)
    plan = Plan(
        options=options,
        machine=machine,
        preset=preset,
        devices=devices,
        strategies=tuple(choose.choose_strategies(options, preset)),
        workloads=tuple(choose.choose_workloads(options)),
        levers=tuple(choose.choose_levers(options)),
        sweeps=tuple(choose.choose_sweeps(options)),
        global_batch_sizes=tuple(choose.choose_batches(options.global_batch_size, "--global-batch-size")),
        batches_per_device=tuple(choose.choose_batches(options.batch_per_device, "--batch-per-device")),
        memory_limit_bytes=choose_memory_limit(options, machine, devices),
    )
    return plan


def _check_numbers(options: RunOptions) -> None:
    for name, value in (("--launches", options.launches), ("--rounds", options.rounds)):
        if value is not None and value < 1:
            raise UsageError(f"{name} {value} measures nothing; use 1 or more")
    limit = options.launch_timeout
    if limit is not None and not 0 < limit <= LONGEST_TIMEOUT_SECONDS:
        raise UsageError(
            f"--launch-timeout {limit:g} is no time; use seconds above 0, at most {LONGEST_TIMEOUT_SECONDS}"
        )
    if not 0 <= options.seed < 1 << 32:
        raise UsageError(f"--seed {options.seed} is out of range; use 0 to {(1 << 32) - 1}")
    if options.data_root is not None and not options.data_root.expanduser().exists():
        raise UsageError(f"--data-root {options.data_root} does not exist; correct it, or leave it out")


def reason_to_skip(case: Case, machine: Machine, num_samples: int | None) -> str | None:
    """Why this machine cannot run the case as it is written, None when it can.

    num_samples: what the data holds, None when it is not known yet.
    """
    strategy = strategies.registry.get(case.strategy)
    reason = strategy.unsupported(case) or levers.unsupported(case, machine.abilities)
    if reason is not None:
        return reason
    if strategy.computes_in(case) == "bf16" and not machine.abilities.bf16:
        return "this GPU does not compute in bf16 (Ampere or later does), which an option of the strategy asks for"
    try:
        strategy.chunk_sizes(case)
    except ValueError as error:
        return str(error)
    if num_samples is not None and case.global_batch_size > num_samples:
        return (
            f"global_batch_size {case.global_batch_size} is more than the {num_samples} samples of the data; "
            "use --data synthetic, or more data with --data-root"
        )
    return None
