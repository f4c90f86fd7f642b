"""How GPUs reach one another: NVLink or PCIe, pair by pair, as NVML tells it. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Protocol

from bench.nvml import Nvml, bare_uuid, sysfs_address

UNTOLD = "?"
# NVML's common ancestor level in the words of `nvidia-smi topo -m`.
LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
P2P_WORDS = {
    1: "the chipset does not support it", 2: "the GPU does not support it", 3: "the PCIe topology does not allow it",
    4: "switched off in the driver", 5: "not supported", 6: "unknown",
}  # fmt: skip
READ_AND_WRITE = ("NVML_P2P_CAPS_INDEX_READ", "NVML_P2P_CAPS_INDEX_WRITE")


class Linked(Protocol):
    """A GPU that NVML could open; `index` is NVML's number, `bus_id` the kernel's address."""

    @property
    def index(self) -> int: ...
    @property
    def handle(self) -> Any: ...
    @property
    def bus_id(self) -> str | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenGpu:
    """A GPU of an NVML session."""

    index: int
    handle: Any
    bus_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How two GPUs are linked, in the word of `nvidia-smi topo -m`, e.g. NV18 or SYS; in no order."""

    uuids: tuple[str, str]
    word: str


def links_of(nvml: Nvml, handles: Sequence[Any]) -> tuple[Link, ...]:
    """The link of every pair of GPUs that has a UUID each and that NVML tells."""
    if len(handles) < 2:
        return ()
    gpus, uuids = [], []
    for index, handle in enumerate(handles):
        pci = nvml.ask("nvmlDeviceGetPciInfo", handle).value
        gpus.append(OpenGpu(index=index, handle=handle, bus_id=None if pci is None else sysfs_address(pci.busId)))
        uuids.append(nvml.ask("nvmlDeviceGetUUID", handle).value)
    words = link_words(nvml, gpus)
    pairs = [((uuids[one], uuids[other]), word) for (one, other), word in words.items() if word != UNTOLD]
    return tuple(Link(uuids=pair, word=word) for pair, word in pairs if None not in pair)


def topology_of(links: Sequence[Link], uuids: Sequence[str | None]) -> str | None:
    """The links among devices by their places: `0-1 NV18, 0-2 SYS, 1-2 SYS`, or `all NV18` where they are alike.

    None with fewer than two devices, and where the link of a pair is not known.
    """
    known = {frozenset(map(bare_uuid, link.uuids)): link.word for link in links}
    words = []
    for (place, one), (other_place, other) in combinations(enumerate(uuids), 2):
        pair = None if one is None or other is None else frozenset((bare_uuid(one), bare_uuid(other)))
        if pair not in known:
            return None
        words.append((f"{place}-{other_place}", known[pair]))
    kinds = {word for _, word in words}
    if len(words) > 1 and len(kinds) == 1:
        return f"all {kinds.pop()}"
    return ", ".join(f"{places} {word}" for places, word in words) or None


def pair_of(one: Linked, other: Linked) -> tuple[int, int]:
    """The numbers of two GPUs, the smaller one first."""
    return min(one.index, other.index), max(one.index, other.index)


def link_words(nvml: Nvml, gpus: Sequence[Linked]) -> dict[tuple[int, int], str]:
    """For every pair of GPU numbers the word of `nvidia-smi topo -m`; `?` where NVML does not tell."""
    links = {gpu.index: nvlinks(nvml, gpu) or {} for gpu in gpus}
    words = {}
    for one, other in combinations(gpus, 2):
        ends = links[one.index], links[other.index]
        # Through a switch every GPU reaches every other with all links that lead to it.
        count = ends[0].get(other.bus_id or "unknown", 0) + min(end.get("switch", 0) for end in ends)
        if not count and p2p_reason(nvml, one, other, ("NVML_P2P_CAPS_INDEX_NVLINK",)) is None:
            # In a container or a virtual machine the driver may hide where links lead.
            count = min(end.get("unknown", 0) for end in ends)
        level = nvml.ask("nvmlDeviceGetTopologyCommonAncestor", one.handle, other.handle).value
        words[pair_of(one, other)] = f"NV{count}" if count else LEVELS.get(level, UNTOLD)
    return words


def nvlinks(nvml: Nvml, gpu: Linked) -> dict[str, int] | None:
    """Active NVLinks by where they lead: a PCI address, `switch`, or `inactive`; None where there is no NVLink."""
    found: dict[str, int] = {}
    switch = getattr(nvml.constants, "NVML_NVLINK_DEVICE_TYPE_SWITCH", None)
    for link in range(getattr(nvml.constants, "NVML_NVLINK_MAX_LINKS", 0)):
        state = nvml.ask("nvmlDeviceGetNvLinkState", gpu.handle, link)
        if state.value is None:
            continue
        if not state.value:
            end = "inactive"
        elif nvml.ask("nvmlDeviceGetNvLinkRemoteDeviceType", gpu.handle, link).value == switch:
            end = "switch"
        else:
            pci = nvml.ask("nvmlDeviceGetNvLinkRemotePciInfo", gpu.handle, link).value
            end = "unknown" if pci is None else sysfs_address(pci.busId)
        found[end] = found.get(end, 0) + 1
    return found or None


def p2p_reason(nvml: Nvml, one: Linked, other: Linked, kinds: tuple[str, ...] = READ_AND_WRITE) -> str | None:
    """Why one GPU cannot reach the other in one of these ways; None where it can."""
    for name in kinds:
        index = getattr(nvml.constants, name)
        # In the binding the first constant is a tuple by a slip.
        index = index[0] if isinstance(index, tuple) else index
        answer = nvml.ask("nvmlDeviceGetP2PStatus", one.handle, other.handle, index)
        if answer.value is None:
            return answer.reason or "unknown"
        if answer.value:
            return P2P_WORDS.get(answer.value, f"status {answer.value}")
    return None
