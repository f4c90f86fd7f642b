"""torch.nn.DataParallel: one process, a thread and a fresh replica per device and step."""

from __future__ import annotations

from torch import nn

from bench.schema import Case
from bench.strategies._host_replicas import HostDataParallel
from bench.strategies._replicas import LOSS_ON, ReplicaStrategy
from bench.strategies.base import Context, register, whole_micro_batch


def torch_chunks(batch_size: int, num_devices: int) -> list[int]:
    """Sizes that `torch.chunk` gives: equal but for the last; there may be fewer than devices."""
    if batch_size == 0:
        return []
    size = -(-batch_size // num_devices)
    full, rest = divmod(batch_size, size)
    return [size] * full + ([rest] if rest else [])


@register
class DP(ReplicaStrategy):
    name = "dp"
    summary = "torch.nn.DataParallel; on CPU, host replicas that follow its four phases"
    options = (LOSS_ON,)

    def chunk_sizes(self, case: Case) -> tuple[int, ...]:
        chunks = torch_chunks(whole_micro_batch(case), case.num_devices)
        return tuple(chunks + [0] * (case.num_devices - len(chunks)))

    def wrap(self, model: nn.Module, context: Context) -> nn.Module:
        if context.case.device_type == "cpu":
            num_devices = context.case.num_devices
            return HostDataParallel(model, lambda batch_size: torch_chunks(batch_size, num_devices))
        return nn.DataParallel(model, device_ids=list(context.devices))
