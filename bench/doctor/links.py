"""How the GPUs reach one another and the host: NVLink, PCIe, peer copies, NUMA, IOMMU, ACS."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator

from bench.doctor.box import Box, Gpu
from bench.doctor.findings import Note, check, info, ok, warning
from bench.doctor.gpus import per_gpu, ranges
from bench.measuring.links import link_words, nvlinks, p2p_reason, pair_of
from bench.nvml import Nvml

AREA = "links"
LEGEND = "NV#: that many NVLinks; PIX, PXB: one, several PCIe switches; PHB, NODE: the CPU; SYS: between CPU sockets"
PCI_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
ACS_CAPABILITY, EXTENDED_CONFIG = 0x000D, 0x100


@check(AREA, "topology")
def topology(box: Box) -> Iterator[Note]:
    gpus, nvml = box.usable_gpus, box.nvml
    if nvml is None or len(gpus) < 2:
        return
    words = link_words(nvml, gpus)
    labels = [str(gpu.index) for gpu in gpus]
    rows = ["   ".rjust(5) + "".join(label.rjust(5) for label in labels)]
    for row in gpus:
        cells = ["X" if row is column else words[pair_of(row, column)] for column in gpus]
        rows.append(f"GPU{row.index}".ljust(5) + "".join(cell.rjust(5) for cell in cells))
    yield ok("\n".join([*rows, LEGEND]))
    kinds = sorted(set(words.values()))
    if len(kinds) > 1:
        yield info(
            f"pairs of GPUs are linked differently: {', '.join(kinds)}",
            "which GPUs a case uses changes what it measures",
            "for fewer than all GPUs choose well linked ones with --devices",
        )
    if "SYS" in kinds:
        effect = "what goes between them crosses the link between CPU sockets, the slowest way"
        yield info("some pairs of GPUs are on different CPU sockets", effect, "compare with --devices of one socket")


@check(AREA, "NVLink")
def inactive_nvlinks(box: Box) -> Iterator[Note]:
    if len(box.usable_gpus) > 1:
        yield from per_gpu(box, _inactive_nvlinks)


def _inactive_nvlinks(nvml: Nvml, gpu: Gpu) -> Note | None:
    links = nvlinks(nvml, gpu)
    if links is None:
        return None
    total, inactive = sum(links.values()), links.get("inactive", 0)
    if inactive == total:
        return info(f"none of {total} links is active", "GPUs reach one another over PCIe", "NVLink needs bridges")
    if inactive:
        remedy = "with NVSwitch start nvidia-fabricmanager; else check the bridges, and dmesg"
        return warning(f"{inactive} of {total} links are not active", "gradients take longer than they could", remedy)
    return ok(f"{total} links are active")


@check(AREA, "peer copies")
def peer_copies(box: Box) -> Iterator[Note]:
    gpus, nvml = box.usable_gpus, box.nvml
    if nvml is None or len(gpus) < 2:
        return
    refused: dict[str, list[str]] = {}
    for one in gpus:
        for other in gpus:
            if one is not other and (reason := p2p_reason(nvml, one, other)):
                refused.setdefault(reason, []).append(f"{one.index}-{other.index}")
    for reason, pairs in refused.items():
        yield info(
            f"GPUs cannot copy to one another directly ({', '.join(pairs)}): {reason}",
            "copies go through host memory: every strategy with several GPUs is slower, dp most",
            "GeForce cards do not have it; else see the findings on virtual machines, IOMMU and ACS",
        )
    if not refused:
        yield ok("every GPU can read and write every other directly")


def numbers(text: str) -> list[int]:
    """The kernel's list `0-3,8` as numbers."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        found += range(int(low), int(high or low) + 1)
    return found


@check(AREA, "NUMA")
def numa(box: Box) -> Iterator[Note]:
    online = numbers(box.text("sys/devices/system/node/online") or "")
    if not online:
        yield info("NUMA nodes are not readable here")
        return
    cpus = {node: numbers(box.text(f"sys/devices/system/node/node{node}/cpulist") or "") for node in online}
    text = "; ".join(f"node {node}: CPU {ranges(own)}" if own else f"node {node}: no CPU" for node, own in cpus.items())
    yield ok(f"{len(online)} NUMA node(s): {text}")
    nodes = {gpu.index: _gpu_node(box, gpu) for gpu in box.usable_gpus}
    if nodes:
        groups = {node: [index for index in nodes if nodes[index] == node] for node in nodes.values()}
        near = ", ".join(
            f"GPU {ranges(own)} at {'an unknown node' if node is None else f'node {node}'}"
            for node, own in groups.items()
        )
        yield ok(near)
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    for index, node in nodes.items():
        if node in cpus and cpus[node] and not allowed & set(cpus[node]):
            fact = f"no CPU of NUMA node {node}, where GPU {index} is, may be used by this process"
            effect = "copies between host and GPU cross the link between CPU sockets"
            yield warning(fact, effect, "widen the affinity (taskset, numactl, the container's cpuset)")
    if len(online) > 1 and box.text("proc/sys/kernel/numa_balancing") not in (None, "0"):
        effect = "the kernel moves pages while a step runs: times scatter"
        yield info("automatic NUMA balancing is on", effect, "sudo sysctl kernel.numa_balancing=0")


def _gpu_node(box: Box, gpu: Gpu) -> int | None:
    text = box.text(f"sys/bus/pci/devices/{gpu.bus_id}/numa_node")
    # The kernel writes -1 where the firmware names none.
    return None if text is None or int(text) < 0 else int(text)


@check(AREA, "IOMMU")
def iommu(box: Box) -> Iterator[Note]:
    addresses = [gpu.bus_id for gpu in box.usable_gpus if gpu.bus_id] or list(box.pci_gpus)
    units = sorted(path.name for path in box.root.glob("sys/class/iommu/*"))
    if not units:
        yield ok("no IOMMU in use, as far as this process can see")
        return
    kinds = {address: box.text(f"sys/bus/pci/devices/{address}/iommu_group/type") for address in addresses}
    translated = [address for address, kind in kinds.items() if kind is not None and kind != "identity"]
    if translated and len(addresses) > 1:
        fact = f"the IOMMU translates for {', '.join(f'{address} ({kinds[address]})' for address in translated)}"
        effect = "peer copies between GPUs may be slow, hang, or change the data"
        yield warning(
            fact, effect, "iommu=pt on the kernel's command line, or off in the firmware; else NCCL_P2P_DISABLE=1"
        )
    else:
        yield ok(f"IOMMU in use ({len(units)} units); it stands between no two GPUs")


@check(AREA, "ACS")
def acs(box: Box) -> Iterator[Note]:
    if len(box.usable_gpus) < 2:
        return
    states = {}
    for gpu in box.usable_gpus:
        # The kernel's own path to a device leads over the bridges above it.
        path = box.root.joinpath(f"sys/bus/pci/devices/{gpu.bus_id}").resolve()
        for folder in (folder for folder in path.parents if PCI_ADDRESS.fullmatch(folder.name)):
            states[folder.name] = _acs_redirects(folder.joinpath("config").read_bytes())
    redirecting = sorted(address for address, state in states.items() if state)
    if redirecting:
        yield warning(
            f"ACS sends peer requests of GPUs up to the CPU at {len(redirecting)} bridge(s): {', '.join(redirecting)}",
            "peer copies between GPUs are slow or hang",
            "switch ACS off in the firmware, or with setpci on these bridges (NCCL's troubleshooting page says how)",
        )
    elif all(state is None for state in states.values()):
        yield info(
            "ACS is not readable here", remedy="as root: lspci -vvv | grep ACSCtl; a 'ReqRedir+' slows peer copies"
        )
    else:
        yield ok("no bridge redirects peer requests (ACS)")


def _acs_redirects(config: bytes) -> bool | None:
    """Whether a bridge redirects peer requests (PCIe, extended capability 0x0D); None where it does not tell.

    Without root the kernel shows the first 64 bytes only.
    """
    offset = EXTENDED_CONFIG
    while EXTENDED_CONFIG <= offset <= len(config) - 8:
        (header,) = struct.unpack_from("<I", config, offset)
        if header & 0xFFFF == ACS_CAPABILITY:
            (control,) = struct.unpack_from("<H", config, offset + 6)
            # Request redirect and completion redirect.
            return bool(control & 0b1100)
        following = header >> 20
        if following <= offset:
            break
        offset = following
    return None
