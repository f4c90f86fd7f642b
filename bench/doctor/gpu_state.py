"""The state of each GPU: modes, errors, clocks, temperature, power."""

from __future__ import annotations

from collections.abc import Iterator

from bench.doctor.box import Box, Gpu
from bench.doctor.findings import Note, check, info, ok, problem, warning
from bench.doctor.gpus import AREA, per_gpu, unknown
from bench.nvml import Nvml

# NVML's clock event reasons (nvml.h, nvmlClocksEventReason*): bit, words, whether it slows a run in earnest.
CLOCK_REASONS = (
    (0x002, "clocks are set by hand", False),
    (0x004, "power cap (software)", True),
    (0x008, "hardware slowdown", True),
    (0x010, "sync boost with other GPUs", False),
    (0x020, "thermal slowdown (software)", True),
    (0x040, "thermal slowdown (hardware)", True),
    (0x080, "power brake from outside", True),
    (0x100, "display clocks", False),
)
HOT_MARGIN_CELSIUS = 10
RESET = "reset the GPU (sudo nvidia-smi --gpu-reset) or reboot"


@check(AREA, "MIG")
def mig(box: Box) -> Iterator[Note]:
    yield from per_gpu(box, _mig)


def _mig(nvml: Nvml, gpu: Gpu) -> Note:
    answer = nvml.ask("nvmlDeviceGetMigMode", gpu.handle)
    if answer.value is None:
        return unknown("MIG mode", answer) if answer.lost else ok("this GPU has none")
    current, pending = answer.value
    if current != pending:
        fact = f"{_on(current)} and will be {_on(pending)}"
        return warning(fact, "the device changes at the next reset", RESET)
    if current:
        return warning(
            f"on, with {len(gpu.mig_uuids)} instance(s)",
            "a process sees one instance, instances cannot copy to one another, and utilization is not reported",
            "to compare strategies on whole GPUs: sudo nvidia-smi -mig 0",
        )
    return ok("off")


def _on(value: int) -> str:
    return "on" if value else "off"


@check(AREA, "persistence mode")
def persistence(box: Box) -> Iterator[Note]:
    yield from per_gpu(box, _persistence)


def _persistence(nvml: Nvml, gpu: Gpu) -> Note:
    answer = nvml.ask("nvmlDeviceGetPersistenceMode", gpu.handle)
    if answer.value is None:
        return unknown("persistence mode", answer)
    if answer.value:
        return ok("on")
    effect = "an unused GPU is shut down: what starts on it after a pause starts up to seconds later"
    return info("off", effect, "sudo nvidia-smi -pm 1, or run nvidia-persistenced")


@check(AREA, "compute mode")
def compute_mode(box: Box) -> Iterator[Note]:
    yield from per_gpu(box, _compute_mode)


def _compute_mode(nvml: Nvml, gpu: Gpu) -> Note:
    answer, remedy = nvml.ask("nvmlDeviceGetComputeMode", gpu.handle), "sudo nvidia-smi -c DEFAULT"
    if answer.value is None:
        return unknown("compute mode", answer)
    if answer.value == nvml.constants.NVML_COMPUTEMODE_PROHIBITED:
        return problem("PROHIBITED", "nothing can run on it", remedy)
    if answer.value != nvml.constants.NVML_COMPUTEMODE_DEFAULT:
        effect = "one process only: a device listed twice fails, and so does a launch while another program is on it"
        return warning("EXCLUSIVE_PROCESS", effect, remedy)
    return ok("DEFAULT")


@check(AREA, "ECC")
def ecc(box: Box) -> Iterator[Note]:
    yield from per_gpu(box, _ecc)


def _ecc(nvml: Nvml, gpu: Gpu) -> Note:
    mode, names = nvml.ask("nvmlDeviceGetEccMode", gpu.handle), nvml.constants
    if mode.value is None:
        return unknown("ECC", mode)
    current, pending = mode.value
    if current != pending:
        return warning(f"{_on(current)} and will be {_on(pending)}", "memory and speed change at a reset", RESET)
    if not current:
        return info("off", "errors in memory go unseen; results of machines with ECC on are a little slower")
    kinds = (names.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, names.NVML_MEMORY_ERROR_TYPE_CORRECTED)
    uncorrected, corrected = (
        nvml.ask("nvmlDeviceGetTotalEccErrors", gpu.handle, kind, names.NVML_VOLATILE_ECC).value for kind in kinds
    )
    if uncorrected:
        fact = f"{uncorrected} uncorrected memory errors since the driver was loaded"
        return problem(
            fact, "results may be wrong and launches may fail", f"{RESET}; if it comes again, replace the card"
        )
    if corrected:
        return info(f"on, {corrected} corrected errors since the driver was loaded", "none on results")
    return ok("on, " + ("error counts unknown" if uncorrected is None else "no errors since the driver was loaded"))


@check(AREA, "remapped rows")
def remapped_rows(box: Box) -> Iterator[Note]:
    yield from per_gpu(box, _remapped_rows)


def _remapped_rows(nvml: Nvml, gpu: Gpu) -> Note | None:
    answer = nvml.ask("nvmlDeviceGetRemappedRows", gpu.handle)
    if answer.value is None:
        # Cards before Ampere, and most without ECC, have no spare rows.
        return None
    corrected, uncorrected, pending, failed = answer.value
    fact = f"{corrected} after corrected and {uncorrected} after uncorrected errors"
    if failed:
        return problem(f"{fact}; a remapping failed", "memory errors can hit results", "replace the card")
    if pending:
        return warning(f"{fact}; one waits for a reset", "memory errors can hit results until then", RESET)
    return info(fact, "none: the spare rows do the work") if uncorrected else ok(fact)


@check(AREA, "clocks")
def clocks(box: Box) -> Iterator[Note]:
    yield from per_gpu(box, _clocks)


def _clocks(nvml: Nvml, gpu: Gpu) -> Note:
    answer = nvml.ask("nvmlDeviceGetCurrentClocksEventReasons", gpu.handle)
    if answer.value is None:
        # The name that older drivers and bindings have.
        answer = nvml.ask("nvmlDeviceGetCurrentClocksThrottleReasons", gpu.handle)
    if answer.value is None:
        return unknown("what holds the clocks", answer)
    held = [(words, slows) for bit, words, slows in CLOCK_REASONS if answer.value & bit]
    text = "clocks are held down now by: " + ", ".join(words for words, _ in held)
    if any(slows for _, slows in held):
        remedy = "look at cooling, power supply and power limit, and at other programs on the GPU"
        return warning(text, "steps are slower than this card can do, and change with heat and load", remedy)
    if held:
        return info(text, "figures hold for these clocks", "sudo nvidia-smi -rgc and -rac give the defaults back")
    return ok("nothing holds the clocks down now")


@check(AREA, "temperature")
def temperature(box: Box) -> Iterator[Note]:
    yield from per_gpu(box, _temperature)


def _temperature(nvml: Nvml, gpu: Gpu) -> Note:
    answer = nvml.ask("nvmlDeviceGetTemperature", gpu.handle, nvml.constants.NVML_TEMPERATURE_GPU)
    if answer.value is None:
        return unknown("temperature", answer)
    threshold = nvml.constants.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
    limit = nvml.ask("nvmlDeviceGetTemperatureThreshold", gpu.handle, threshold).value
    fact = f"{answer.value} °C" + (f", slows down at {limit} °C" if limit else "")
    if limit and answer.value > limit - HOT_MARGIN_CELSIUS:
        return warning(fact, "a run will be slowed by heat", "let it cool; look at fans, air and other programs")
    return ok(fact)


@check(AREA, "power limit")
def power_limit(box: Box) -> Iterator[Note]:
    yield from per_gpu(box, _power_limit)


def _power_limit(nvml: Nvml, gpu: Gpu) -> Note:
    limit = nvml.ask("nvmlDeviceGetEnforcedPowerLimit", gpu.handle)
    usual = nvml.ask("nvmlDeviceGetPowerManagementDefaultLimit", gpu.handle)
    if not limit.value:
        return unknown("power limit", limit)
    # NVML counts in milliwatts.
    fact = f"{limit.value / 1000:.0f} W"
    if usual.value and limit.value < usual.value:
        remedy = f"sudo nvidia-smi -pl {usual.value / 1000:.0f}"
        fact += f", below the default of {usual.value / 1000:.0f} W"
        return warning(fact, "under load it is slower than the same card at its default", remedy)
    return ok(fact)


@check(AREA, "PCIe link")
def pcie(box: Box) -> Iterator[Note]:
    yield from per_gpu(box, _pcie)


def _pcie(nvml: Nvml, gpu: Gpu) -> Note | None:
    """The width alone: the generation falls while a GPU idles."""
    width = nvml.ask("nvmlDeviceGetCurrPcieLinkWidth", gpu.handle).value
    widest = nvml.ask("nvmlDeviceGetMaxPcieLinkWidth", gpu.handle).value
    if width is None or widest is None:
        return None
    if width < widest:
        effect = "copies from the host and between GPUs without NVLink take longer"
        return warning(f"x{width} of x{widest}", effect, "try another slot or riser; see the mainboard's manual")
    return ok(f"x{width}")
