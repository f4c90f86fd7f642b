"""How the environments of two runs differ, fact by fact, and whether their figures may be compared.

They may where the fingerprints are equal (`bench.recording.environment.fingerprint`): device type,
devices and their links, processor, cores, memory. All else is listed, and refuses nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from bench.recording.environment import whole_gib
from bench.schema import NameValue, Run

Facts: TypeAlias = Mapping[str, "str | None"]

DEVICES, LINKS, COMMIT = "devices", "links", "commit"
IN_FINGERPRINT = frozenset({"device type", DEVICES, LINKS, "processor", "cores", "memory"})
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A fact that is not the same in two runs; None where a run has none or does not tell.

    `fingerprint`: it belongs to what must be equal for figures to be comparable.
    """

    name: str
    base: str | None
    head: str | None
    fingerprint: bool = False


def differences(base: Run, head: Run) -> tuple[Difference, ...]:
    """The facts in which two environments differ, those that matter most for speed first; empty where none does."""
    found = []
    for section in SECTIONS:
        ours, theirs = section(base), section(head)
        for name in dict.fromkeys([*ours, *theirs]):
            before, now = ours.get(name), theirs.get(name)
            if before != now:
                fingerprint = name in IN_FINGERPRINT
                found.append(Difference(name=name, base=before, head=now, fingerprint=fingerprint))
    return tuple(found)


def why_not_comparable(base: Run, head: Run) -> str | None:
    """Why the figures of two runs may not be compared, with the facts that differ; None where they may."""
    # A run whose own table is lost has no fingerprint, whatever its class says.
    unknown = [run.run_id for run in (base, head) if not run.fingerprint]
    if unknown:
        return f"the environment of {' and of '.join(unknown)} is unknown: no readable run.parquet"
    if base.fingerprint == head.fingerprint:
        return None
    facts = [_sentence(difference) for difference in differences(base, head) if difference.fingerprint]
    if not facts:
        made = f"made by dpbench {base.dpbench_version} and {head.dpbench_version}"
        return (
            f"the fingerprints {base.fingerprint} and {head.fingerprint} differ ({made}), though no fact in them does"
        )
    return "; ".join(facts)


def _sentence(difference: Difference) -> str:
    """A device's name says itself what it is."""
    label = "" if difference.name == DEVICES else f"{difference.name} "
    return f"{label}{difference.base or UNKNOWN} against {difference.head or UNKNOWN}"


def devices_text(run: Run) -> str | None:
    """E.g. `4 x NVIDIA H200`; None where the run names no device."""
    names = Counter(device.name for device in run.devices)
    return ", ".join(f"{names[name]} x {name}" for name in sorted(names)) or None


def _machine(run: Run) -> Facts:
    memory = [device.memory_bytes for device in run.devices if device.memory_bytes is not None]
    return {
        "device type": run.device_type,
        DEVICES: devices_text(run),
        LINKS: run.topology,
        "processor": run.cpu_name,
        "cores": _text(run.cpu_cores),
        "memory": None if run.host_memory_bytes is None else f"{whole_gib(run.host_memory_bytes)} GiB",
        "device memory": _listed(f"{size / 2**30:.1f} GiB" for size in memory),
        "compute capability": _listed(device.capability for device in run.devices),
    }


def _asked(run: Run) -> Facts:
    limit = None if run.memory_limit_bytes is None else f"{run.memory_limit_bytes / 2**20:g} MiB a device"
    return {"preset": run.preset, "memory limit": limit}


def _runtime(run: Run) -> Facts:
    torch = {item.name: item.value for item in run.packages if item.name == "torch"}
    return torch | {
        "CUDA": run.cuda_version,
        "NCCL": run.nccl_version,
        "driver": run.driver_version,
        "host allocator": run.host_allocator,
    }


def _variables(run: Run) -> Facts:
    return _values(run.environment_variables)


def _packages(run: Run) -> Facts:
    return _values(item for item in run.packages if item.name != "torch")


def _suite(run: Run) -> Facts:
    changed = " with uncommitted changes" if run.git_dirty else ""
    return {"dpbench": run.dpbench_version, COMMIT: f"{run.git_commit}{changed}" if run.git_commit else None}


def _place(run: Run) -> Facts:
    return {
        "Python": run.python_version,
        "system": run.os_name,
        "host": run.hostname,
        "seed": _text(run.seed),
        "device UUIDs": _listed(device.uuid for device in run.devices),
    }


SECTIONS: tuple[Callable[[Run], Facts], ...] = (
    _machine,
    _asked,
    _runtime,
    _variables,
    _packages,
    _suite,
    _place,
)


def _values(items: Iterable[NameValue]) -> Facts:
    return {item.name: item.value for item in items}


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


def _listed(texts: Iterable[str | None]) -> str | None:
    """Each text once; None where there is none."""
    return ", ".join(dict.fromkeys(text for text in texts if text is not None)) or None


def other_software(base: Run, head: Run) -> str | None:
    """What differs in the software that the machine's pace is taken with; None where nothing does.

    A torch that is faster at that piece of work, or that is told to use other threads, would pass for a faster machine.
    """
    for name in ("torch", "nvidia-nccl-cu12", "nvidia-nccl-cu13"):
        before, now = (_version_of(run, name) for run in (base, head))
        if before != now:
            return f"{name} is {now or 'not there'}, and was {before or 'not there'}"
    if base.dpbench_version != head.dpbench_version:
        return f"dpbench is {head.dpbench_version}, and was {base.dpbench_version}"
    if (base.cuda_version, base.driver_version) != (head.cuda_version, head.driver_version):
        return "CUDA or the driver is another"
    if base.host_allocator != head.host_allocator:
        now, before = (run.host_allocator or "what was not recorded" for run in (head, base))
        return f"memory of the host comes from {now}, and came from {before}"
    return None if base.environment_variables == head.environment_variables else "environment variables differ"


def _version_of(run: Run, name: str) -> str | None:
    return next((item.value for item in run.packages or () if item.name == name), None)
