"""Published peaks of NVIDIA cards: dense matrix arithmetic, never the doubled figures of 2:4 sparsity.

A card is known by the name that the driver gives it, as a whole: a PCIe card is slower than its SXM
sibling, and an A1000 is no A100. The peak holds at the vendor's boost clock; consumer cards may run above it.
`halved`: the source gives the sparse figures of its tensor cores.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

TERA = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Peak of one card in TFLOP/s by precision, None where the card lacks it. names: pattern of its whole name.

    fp32: the ordinary units, which do IEEE float32; tf32 and bf16: the tensor cores, which add up in float32.
    fp16: the same, given where it differs from bf16.
    """

    names: str
    fp32: float
    tf32: float | None
    bf16: float | None
    source: str
    fp16: float | None = None

    def flops_per_second(self, precision: str) -> float | None:
        """Dense peak; None for a precision that the card, or this table, does not have."""
        teras = {"fp32": self.fp32, "tf32": self.tf32, "bf16": self.bf16, "fp16": self.fp16 or self.bf16}.get(precision)
        return None if teras is None else teras * TERA


PEAKS = (
    Peak(names=r"B200", fp32=75, tf32=1100, bf16=2250, source="NVIDIA Blackwell datasheet (HGX B200), halved"),
    Peak(
        names=r"H200",
        fp32=67,
        tf32=494.5,
        bf16=989.5,
        source="NVIDIA H200 Tensor Core GPU datasheet (SXM), halved",
    ),
    Peak(
        names=r"H100 80GB HBM3|H100 SXM5( 80GB)?",
        fp32=66.9,
        tf32=494.7,
        bf16=989.4,
        source="NVIDIA H100 Tensor Core GPU Architecture whitepaper (SXM5)",
    ),
    Peak(
        names=r"H100 PCIe|H100 80GB HBM2e",
        fp32=51.2,
        tf32=378,
        bf16=756,
        source="NVIDIA H100 Tensor Core GPU Architecture whitepaper (PCIe)",
    ),
    Peak(
        names=r"A100-(SXM4|SXM|PCIE)-\d+GB|A100 80GB PCIe",
        fp32=19.5,
        tf32=156,
        bf16=312,
        source="NVIDIA A100 Tensor Core GPU datasheet",
    ),
    Peak(names=r"A40", fp32=37.4, tf32=74.8, bf16=149.7, source="NVIDIA A40 datasheet"),
    Peak(names=r"A10", fp32=31.2, tf32=62.5, bf16=125, source="NVIDIA A10 Tensor Core GPU datasheet"),
    Peak(names=r"L40S", fp32=91.6, tf32=183, bf16=362, source="NVIDIA L40S datasheet"),
    Peak(names=r"L4", fp32=30.3, tf32=60, bf16=121, source="NVIDIA L4 Tensor Core GPU datasheet, halved"),
    Peak(names=r"V100S-PCIE-\d+GB", fp32=16.4, tf32=None, bf16=None, fp16=130, source="NVIDIA V100 datasheet"),
    Peak(names=r"V100-SXM2-\d+GB", fp32=15.7, tf32=None, bf16=None, fp16=125, source="NVIDIA V100 datasheet"),
    Peak(names=r"V100-PCIE-\d+GB", fp32=14, tf32=None, bf16=None, fp16=112, source="NVIDIA V100 datasheet"),
    Peak(names=r"T4", fp32=8.1, tf32=None, bf16=None, fp16=65, source="NVIDIA T4 Tensor Core GPU datasheet"),
    Peak(names=r"RTX A6000", fp32=38.7, tf32=77.4, bf16=154.8, source="NVIDIA Ampere GA102 whitepaper"),
    Peak(names=r"GeForce RTX 3090", fp32=35.6, tf32=35.6, bf16=71, source="NVIDIA Ampere GA102 whitepaper"),
    Peak(names=r"GeForce RTX 4090", fp32=82.6, tf32=82.6, bf16=165.2, source="NVIDIA Ada GPU Architecture whitepaper"),
    Peak(
        names=r"GeForce RTX 5090",
        fp32=104.8,
        tf32=104.8,
        bf16=209.5,
        source="NVIDIA RTX Blackwell GPU Architecture whitepaper",
    ),
)


def peak_of(name: str) -> Peak | None:
    """The peak of the card that the driver calls so; None for one that the table does not hold."""
    bare = re.sub(r"^(NVIDIA |Tesla )+", "", name.strip())
    return next((peak for peak in PEAKS if re.fullmatch(peak.names, bare)), None)


def published_flops_per_second(names: Sequence[str], precision: str) -> float | str:
    """Sum over the cards of these names, or the reason why it is unknown."""
    if not names:
        return "the names of the devices are not known"
    total = 0.0
    for name in names:
        peak = peak_of(name)
        if peak is None:
            part = "; a MIG device is part of a card" if " MIG " in name else ""
            return f"no published peak of {name!r} is known here{part}"
        flops = peak.flops_per_second(precision)
        if flops is None:
            return f"{name} has no published peak in {precision}"
        total += flops
    return total
