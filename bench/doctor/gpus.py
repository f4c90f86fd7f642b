"""Which GPUs there are, in CUDA's and in NVML's order, and their memory with those who use it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

from bench.doctor.box import Box, Gpu
from bench.doctor.findings import Note, check, gib, info, ok, problem, warning
from bench.nvml import MOST_BYTES, Answer, Nvml, bare_uuid

AREA = "gpus"
DISPLAY = re.compile(
    r"(x|xorg|xwayland|gnome-shell|kwin|plasmashell|mutter|weston|sway|hyprland|cinnamon|compiz|xfwm4|gdm|sddm|lightdm)"
    r"([-._].*)?"
)
# An idle GPU shows some MiB, or a few hundred where a daemon keeps a context.
UNEXPLAINED_BYTES = 512 * 2**20
MEMORY_REMEDY = "end these programs, or choose other GPUs with CUDA_VISIBLE_DEVICES"


def per_gpu(box: Box, judge: Callable[[Nvml, Gpu], Note | None]) -> Iterator[Note]:
    """One note for all GPUs of which the same is to be said."""
    if box.nvml is None:
        return
    said: dict[Note, list[int]] = {}
    for gpu in box.usable_gpus:
        note = judge(box.nvml, gpu)
        if note is not None:
            said.setdefault(note, []).append(gpu.index)
    for note, indices in said.items():
        fact = f"GPU {ranges(indices)}: {note.fact}"
        yield Note(status=note.status, fact=fact, effect=note.effect, remedy=note.remedy)


def ranges(numbers: list[int]) -> str:
    """[0, 1, 2, 5] is `0-2, 5`."""
    runs = [list(run) for _, run in groupby(enumerate(sorted(numbers)), lambda item: item[1] - item[0])]
    return ", ".join(f"{run[0][1]}-{run[-1][1]}" if len(run) > 1 else str(run[0][1]) for run in runs)


def unknown(what: str, answer: Answer) -> Note:
    """What to say of a query that was refused."""
    if answer.lost:
        return problem(
            f"{what}: {answer.reason}", "runs on it fail", "see dmesg for Xid errors; reset the GPU or reboot"
        )
    return info(f"{what} unknown: {answer.reason}")


@check(AREA, "GPUs")
def present(box: Box) -> Iterator[Note]:
    if box.nvml is None:
        yield info("no GPU can be examined: NVML is not available", "runs measure CPU workers only")
        return
    count = box.nvml.ask("nvmlDeviceGetCount")
    if count.value is None:
        yield problem(f"NVML cannot count the GPUs: {count.reason}", "none can be watched", "see dmesg; reboot")
    elif not box.gpus:
        yield info("NVML works but finds no GPU", "runs measure CPU workers only", "see dmesg if there should be one")
    for gpu in box.gpus:
        if gpu.problem is not None:
            remedy = "see dmesg for Xid errors; reset the GPU or reboot; in a container check which GPUs it was given"
            yield problem(f"GPU {gpu.index} cannot be opened: {gpu.problem}", "it cannot be used or watched", remedy)


@check(AREA, "devices")
def devices(box: Box) -> Iterator[Note]:
    if not box.gpus:
        return
    by_uuid = {bare_uuid(uuid): gpu for gpu in box.usable_gpus for uuid in (gpu.uuid, *gpu.mig_uuids) if uuid}
    lines = ["GPU numbers on this page are those of NVML and nvidia-smi; --devices takes CUDA's"]
    order: list[int] = []
    for device in box.cuda.devices:
        gpu = by_uuid.get(bare_uuid(device.uuid or ""))
        place = "unknown to NVML" if gpu is None else f"GPU {gpu.index}, PCI {gpu.bus_id or 'unknown'}"
        memory = "" if device.memory_bytes is None else f", {gib(device.memory_bytes)}"
        lines.append(f"CUDA {device.index} = {place}: {device.name}{memory}, {device.uuid or 'UUID unknown'}")
        order += [] if gpu is None else [gpu.index]
    for gpu in box.usable_gpus:
        if gpu.index not in order:
            place = f"GPU {gpu.index}, PCI {gpu.bus_id or 'unknown'}"
            lines.append(f"not seen by CUDA: {place}, {gpu.name or 'name unknown'}, {gpu.uuid or 'UUID unknown'}")
    yield ok("\n".join(lines))
    if order != sorted(order):
        yield info(
            f"CUDA's order differs from NVML's: its devices are GPU {', '.join(map(str, order))}",
            "numbers of nvidia-smi do not fit --devices",
            "go by the UUIDs, or set CUDA_DEVICE_ORDER=PCI_BUS_ID",
        )
    yield from _hidden(box, set(order))


def _hidden(box: Box, seen: set[int]) -> Iterator[Note]:
    value = box.environment.get("CUDA_VISIBLE_DEVICES")
    hidden = [gpu.index for gpu in box.usable_gpus if gpu.index not in seen]
    if value is not None and box.cuda.devices and hidden:
        fact = f"CUDA_VISIBLE_DEVICES={value!r} hides GPU {ranges(hidden)}"
        yield info(fact, "runs use the others only", "unset it to use all; an unknown entry hides all that follow it")
    elif box.cuda.devices and hidden and not any(gpu.mig_uuids for gpu in box.gpus):
        yield warning(
            f"torch does not see GPU {ranges(hidden)}", "runs use the others only", "see dmesg for Xid errors"
        )


@check(AREA, "models")
def mixed(box: Box) -> Iterator[Note]:
    names = [gpu.name or "unknown" for gpu in box.usable_gpus]
    kinds = {name: names.count(name) for name in names}
    text = ", ".join(f"{count} x {name}" for name, count in kinds.items())
    if len(kinds) > 1:
        yield warning(
            f"different GPUs: {text}",
            "a step lasts as long as the slowest takes, and the smallest memory limits the batch",
            "choose equal ones with --devices or CUDA_VISIBLE_DEVICES",
        )
    elif kinds:
        yield ok(text)


@check(AREA, "memory")
def memory(box: Box) -> Iterator[Note]:
    yield from per_gpu(box, _memory)


def _memory(nvml: Nvml, gpu: Gpu) -> Note:
    held, text = memory_info(nvml, gpu)
    if held.value is None:
        return unknown("memory", held)
    free, total, used = held.value.free, held.value.total, held.value.used
    fact = f"{gib(free)} of {gib(total)} free, {gib(used)} used, {text}"
    if free < total / 2:
        return warning(fact, "large batches run out of memory early", MEMORY_REMEDY)
    users, refused = processes(nvml, gpu)
    if used > UNEXPLAINED_BYTES and not users:
        fact += f"; attribution unavailable: NVML names no process{f' ({refused})' if refused else ''}"
        return info(fact, "somebody may be using this GPU", "look with nvidia-smi on the host, outside the container")
    return ok(fact)


def memory_info(nvml: Nvml, gpu: Gpu) -> tuple[Answer, str]:
    """NVML's memory figures, and where they leave the part that the driver keeps for itself."""
    answer, apart = nvml.memory(gpu.handle)
    kept = f"{gib(answer.value.reserved)} kept by the driver" if apart else "what the driver keeps counts as used"
    return _believable(answer), kept


def _believable(answer: Answer) -> Answer:
    held = answer.value
    if held is None or max(held.used, held.free) <= held.total < MOST_BYTES:
        return answer
    return Answer(reason=f"NVML's figures cannot be right: {held.used} of {held.total} bytes used, {held.free} free")


def processes(nvml: Nvml, gpu: Gpu) -> tuple[list[Any], str | None]:
    """Who computes or draws on the GPU by NVML, and why a list could not be had."""
    found: dict[int, Any] = {}
    refused = None
    for function in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
        answer = nvml.ask(function, gpu.handle)
        refused = refused or answer.reason
        found |= {item.pid: item for item in answer.value or () if item is not None and item.pid is not None}
    return list(found.values()), refused


@check(AREA, "other programs")
def other_programs(box: Box) -> Iterator[Note]:
    for gpu in box.usable_gpus if box.nvml is not None else ():
        assert box.nvml is not None
        users, refused = processes(box.nvml, gpu)
        if refused and not users:
            yield info(f"GPU {gpu.index}: processes unknown: {refused}", "who uses it cannot be told")
        named = [(process_name(item.pid), item) for item in users]
        drawing = [_user(name, item) for name, item in named if is_display(name)]
        computing = [_user(name, item) for name, item in named if not is_display(name)]
        if drawing:
            yield warning(
                f"GPU {gpu.index} draws a screen: {', '.join(drawing)}",
                "it takes memory and time of this GPU, unevenly; figures of it scatter more",
                "measure without a desktop (sudo systemctl isolate multi-user.target), or on other GPUs",
            )
        if computing:
            fact = f"GPU {gpu.index} is used by {', '.join(computing)}"
            yield warning(
                fact, "steps are slower and less memory is left; figures are not to be trusted", MEMORY_REMEDY
            )


def _user(name: str | None, item: Any) -> str:
    memory = "memory unknown" if item.usedGpuMemory is None else gib(item.usedGpuMemory)
    # In a container NVML tells the host's process ids.
    return f"{name or 'a process that is not visible here (another pid namespace)'} (pid {item.pid}, {memory})"


def process_name(pid: int) -> str | None:
    """The program's name; None where this process cannot see it."""
    import psutil

    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return None


def is_display(name: str | None) -> bool:
    """Whether a program draws the desktop."""
    return name is not None and DISPLAY.fullmatch(name.lower()) is not None
