"""Options of fsdp that exclude something, and what it computes in."""

from __future__ import annotations

from dataclasses import replace

from bench.levers import Abilities
from bench.planning.plan import reason_to_skip
from bench.schema import Case, NameValue
from bench.strategies import registry
from tests.planning.made_up_machines import gpus

FSDP = registry.get("fsdp")
CASE = Case(
    workload="bert_small", strategy="fsdp", device_type="cuda", devices=(0, 1, 2, 3), global_batch_size=8, size="quick"
)


def with_option(name: str, value: str) -> Case:
    return replace(CASE, settings=(NameValue(name=name, value=value),))


def test_groups_must_divide_the_devices() -> None:
    assert FSDP.unsupported(with_option("shard_group", "2")) is None
    for size in ("3", "4", "8"):
        assert "use a divisor below their number" in str(FSDP.unsupported(with_option("shard_group", size)))


def test_offloading_exists_on_gpus_and_not_with_a_scaler() -> None:
    offloaded = with_option("cpu_offload", "on")
    assert FSDP.unsupported(offloaded) is None
    assert "already" in str(FSDP.unsupported(replace(offloaded, device_type="cpu")))
    assert "use bf16" in str(FSDP.unsupported(replace(offloaded, precision="fp16")))


def test_mixed_precision_is_what_it_computes_in_unless_an_autocast_says_otherwise() -> None:
    mixed = with_option("mixed_precision", "bf16_reduce_fp32")
    assert [FSDP.computes_in(replace(case, precision=p)) for case in (CASE, mixed) for p in ("fp32", "fp16")] == [
        "fp32", "fp16", "bf16", "fp16",
    ]  # fmt: skip
    assert FSDP.is_lossy(mixed) and FSDP.without_loss(mixed) == CASE


def test_mixed_precision_needs_a_gpu_that_computes_in_it() -> None:
    mixed = with_option("mixed_precision", "bf16")
    assert reason_to_skip(mixed, gpus(4), None) is None
    old = replace(gpus(4), abilities=Abilities(bf16=False))
    assert "Ampere" in str(reason_to_skip(mixed, old, None))
