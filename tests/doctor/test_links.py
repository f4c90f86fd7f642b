"""NVLink, PCIe, peer copies, NUMA, IOMMU and ACS."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from bench.doctor import links
from bench.doctor.box import Box
from bench.measuring.links import link_words

from .made_up import files, gpu, machine, said

STATE, KIND, REMOTE = (
    "nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo",
)  # fmt: skip
LEVEL, P2P = "nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetP2PStatus"
NODES = {
    "sys/devices/system/node/online": "0-1\n",
    "sys/devices/system/node/node0/cpulist": "0-3,8\n",
    "sys/devices/system/node/node1/cpulist": "4-7\n",
}


def nvlinks(index: int, count: int, answer: Any = 1) -> dict[Any, Any]:
    return {(STATE, f"h{index}", link): answer for link in range(count)}


def leads_to(index: int, other: str, links_: range) -> dict[Any, Any]:
    return {(REMOTE, f"h{index}", link): SimpleNamespace(busId=other) for link in links_}


def words(answers: dict[Any, Any], count: int = 2) -> dict[tuple[int, int], str]:
    box = machine(answers, gpus=count)
    assert box.nvml is not None
    return link_words(box.nvml, box.usable_gpus)


@pytest.mark.parametrize(
    ("level", "word"), [(0, "PIX"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS")]
)
def test_pcie_levels_have_the_words_of_nvidia_smi(level: int, word: str) -> None:
    assert words({LEVEL: level}) == {(0, 1): word}


def test_a_level_that_is_not_told_is_a_question_mark() -> None:
    assert words({}) == {(0, 1): "?"}


def test_direct_nvlinks_are_counted_per_pair() -> None:
    # GPU 0 has two links to GPU 1 (PCI 0000:02:00.0) and one to GPU 2 (0000:03:00.0); 1 and 2 have none.
    ends = leads_to(0, "00000000:02:00.0", range(2)) | leads_to(0, "00000000:03:00.0", range(2, 3))
    answers = {LEVEL: 50} | nvlinks(0, 3) | ends
    assert words(answers, 3) == {(0, 1): "NV2", (0, 2): "NV1", (1, 2): "SYS"}


def test_through_a_switch_the_smaller_number_of_links_counts() -> None:
    answers = {LEVEL: 50, KIND: pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH} | nvlinks(0, 18) | nvlinks(1, 12)
    assert words(answers) == {(0, 1): "NV12"}


def test_links_that_hide_where_they_lead_count_where_peers_are_reached_over_nvlink() -> None:
    assert words({LEVEL: 50, P2P: 0} | nvlinks(0, 4) | nvlinks(1, 4)) == {(0, 1): "NV4"}
    assert words({LEVEL: 50, P2P: 5} | nvlinks(0, 4) | nvlinks(1, 4)) == {(0, 1): "SYS"}


def test_the_matrix_reads_as_nvidia_smi_prints_it() -> None:
    answers = {(LEVEL, "h0", "h1"): 10, (LEVEL, "h0", "h2"): 50, (LEVEL, "h1", "h2"): 50}
    uneven, sockets, matrix = said(machine(answers, gpus=3), "links", "topology")
    assert matrix.fact.splitlines()[:4] == [
        "         0    1    2",
        "GPU0     X  PIX  SYS",
        "GPU1   PIX    X  SYS",
        "GPU2   SYS  SYS    X",
    ]
    assert (uneven.status, uneven.fact) == ("info", "pairs of GPUs are linked differently: PIX, SYS")
    assert (sockets.status, sockets.fact) == ("info", "some pairs of GPUs are on different CPU sockets")


@pytest.mark.parametrize("title", ["topology", "NVLink", "peer copies", "ACS"])
def test_one_gpu_has_no_links(title: str) -> None:
    assert said(machine(), "links", title) == []


@pytest.mark.parametrize(
    ("active", "inactive", "status", "fact"),
    [
        (4, 0, "ok", "4 links are active"),
        (3, 1, "warning", "1 of 4 links are not active"),
        (0, 4, "info", "none of 4 links is active"),
    ],
)
def test_links_that_are_not_active(active: int, inactive: int, status: str, fact: str) -> None:
    answers = {(STATE, "h0", link): int(link < active) for link in range(active + inactive)}
    (found,) = said(machine(answers, gpus=2), "links", "NVLink")
    assert (found.status, found.fact) == (status, f"GPU 0: {fact}")


def test_peer_copies() -> None:
    (fine,) = said(machine({P2P: 0}, gpus=2), "links", "peer copies")
    assert fine.status == "ok"
    (refused,) = said(machine({P2P: 0, (P2P, "h1", "h0", 1): 4}, gpus=2), "links", "peer copies")
    assert refused.status == "info"
    assert refused.fact == "GPUs cannot copy to one another directly (1-0): switched off in the driver"
    (untold,) = said(machine(gpus=2), "links", "peer copies")
    assert untold.fact.endswith("(0-1, 1-0): not supported by this device")


def test_the_kernels_lists_of_numbers() -> None:
    assert links.numbers("0-2,7") == [0, 1, 2, 7]
    assert links.numbers("") == []


def test_numa_nodes_of_the_host_and_of_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = NODES | {
        "sys/bus/pci/devices/0000:01:00.0/numa_node": "1\n",
        "sys/bus/pci/devices/0000:02:00.0/numa_node": "-1\n",
        "proc/sys/kernel/numa_balancing": "1\n",
    }
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    far, balancing, host, near = said(machine(gpus=3, root=files(tmp_path, tree)), "links", "NUMA")
    assert host.fact == "2 NUMA node(s): node 0: CPU 0-3, 8; node 1: CPU 4-7"
    assert near.fact == "GPU 0 at node 1, GPU 1-2 at an unknown node"
    assert far.status == "warning"
    assert far.fact == "no CPU of NUMA node 1, where GPU 0 is, may be used by this process"
    assert (balancing.status, balancing.fact) == ("info", "automatic NUMA balancing is on")


def test_numa_that_is_fine_and_numa_that_is_not_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (unreadable,) = said(Box(root=tmp_path), "links", "NUMA")
    assert unreadable.status == "info"
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {4})
    tree = NODES | {"sys/bus/pci/devices/0000:01:00.0/numa_node": "1", "proc/sys/kernel/numa_balancing": "0"}
    found = said(machine(root=files(tmp_path, tree)), "links", "NUMA")
    assert [finding.status for finding in found] == ["ok", "ok"]


def iommu_tree(root: Path, kinds: dict[str, str]) -> Path:
    tree = {f"sys/bus/pci/devices/{address}/iommu_group/type": kind for address, kind in kinds.items()}
    return files(root, tree | {"sys/class/iommu/dmar0": ""})


def test_an_iommu_that_translates_between_gpus_is_a_warning(tmp_path: Path) -> None:
    root = iommu_tree(tmp_path, {"0000:01:00.0": "DMA-FQ\n", "0000:02:00.0": "identity\n"})
    (found,) = said(machine(gpus=2, root=root), "links", "IOMMU")
    assert (found.status, found.fact) == ("warning", "the IOMMU translates for 0000:01:00.0 (DMA-FQ)")
    assert found.remedy is not None and "iommu=pt" in found.remedy


def test_an_iommu_in_passthrough_with_one_gpu_or_absent_is_fine(tmp_path: Path) -> None:
    assert [item.status for item in said(machine(gpus=2, root=tmp_path), "links", "IOMMU")] == ["ok"]
    root = iommu_tree(tmp_path, {"0000:01:00.0": "identity", "0000:02:00.0": "identity"})
    assert [item.status for item in said(machine(gpus=2, root=root), "links", "IOMMU")] == ["ok"]
    root = iommu_tree(tmp_path, {"0000:01:00.0": "DMA"})
    assert [item.status for item in said(machine(gpus=1, root=root), "links", "IOMMU")] == ["ok"]


def config(acs_control: int) -> bytes:
    """4 KiB of PCIe configuration: advanced error reporting at 0x100, ACS at 0x148 after it."""
    content = bytearray(4096)
    struct.pack_into("<I", content, 0x100, 0x0001 | 2 << 16 | 0x148 << 20)
    struct.pack_into("<IHH", content, 0x148, 0x000D | 1 << 16, 0x1F, acs_control)
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "status"),
    [(config(0b11101), "warning"), (config(0), "ok"), (config(0b1), "ok"), (bytes(64), "info"), (bytes(4096), "info")],
)
def test_acs_on_the_bridges_above_gpus(tmp_path: Path, content: bytes, status: str) -> None:
    below = "sys/devices/pci0000:00/0000:00:01.0"
    files(tmp_path, {f"{below}/config": content} | {f"{below}/0000:0{bus}:00.0/config": b"" for bus in (1, 2)})
    folder = tmp_path / "sys/bus/pci/devices"
    folder.mkdir(parents=True)
    for bus in (1, 2):
        (folder / f"0000:0{bus}:00.0").symlink_to(tmp_path / f"{below}/0000:0{bus}:00.0")
    (found,) = said(machine(gpus=[gpu(0), gpu(1)], root=tmp_path), "links", "ACS")
    assert found.status == status
    assert ("0000:00:01.0" in found.fact) == (status == "warning")
