"""BalancedDP: DataParallel with fewer samples on GPU 0, which also holds what is gathered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel._functions import Scatter
from torch.nn.parallel.parallel_apply import parallel_apply

from bench.balance import split_sizes
from bench.schema import Case
from bench.strategies._host_replicas import HostDataParallel
from bench.strategies._replicas import LOSS_ON, ReplicaStrategy
from bench.strategies.base import Context, Option, register, whole_micro_batch
from bench.structure import samples_in, split_structure

AUTO = "auto"
GPU0_BSZ = Option(
    name="gpu0_bsz",
    default="",
    words=(AUTO,),
    meaning="samples of a micro-batch on the first device; by default micro_batch // (2 * num_devices); auto evens out "
    "the peaks of memory by a model fitted to two short probes",
)


class BalancedDataParallel(nn.DataParallel[nn.Module]):
    """torch's DataParallel with the first device's share set by hand.

    gpu0_bsz: samples on `device_ids[0]`; ValueError if negative. Devices whose share is 0 take
    no part in a step. Takes positional and keyword inputs, nested containers and non-tensors.
    """

    def __init__(
        self, module: nn.Module, gpu0_bsz: int, device_ids: Sequence[int | torch.device] | None = None
    ) -> None:
        if gpu0_bsz < 0:
            raise ValueError(f"gpu0_bsz is {gpu0_bsz}; it must be 0 or more")
        super().__init__(module, device_ids=device_ids)
        if not self.device_ids:
            raise RuntimeError("BalancedDataParallel needs CUDA devices; on a CPU use HostDataParallel")
        self.gpu0_bsz = gpu0_bsz

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        batch = samples_in((inputs, kwargs))
        if batch == 0 or len(self.device_ids) == 1:
            return super().forward(*inputs, **kwargs)
        sizes = split_sizes(batch, len(self.device_ids), self.gpu0_bsz)
        active = [position for position, size in enumerate(sizes) if size]
        devices = [self.device_ids[position] for position in active]
        chunk_sizes = [sizes[position] for position in active]

        def scatter(tensor: Tensor) -> Sequence[Tensor]:
            chunks: Sequence[Tensor] = Scatter.apply(devices, chunk_sizes, self.dim, tensor)
            return chunks

        chunks = split_structure((inputs, kwargs), chunk_sizes, scatter)
        # The broadcast starts from the first device, so it is in the list even with no samples.
        idle_first = active[0] != 0
        replicas = self.replicate(self.module, [self.device_ids[0], *devices] if idle_first else devices)
        working = replicas[1:] if idle_first else replicas
        outputs = parallel_apply(working, [args for args, _ in chunks], [named for _, named in chunks], devices)
        if idle_first:
            self._keep_buffers(working[0])
        return self.gather(outputs, self.output_device)

    def _keep_buffers(self, replica: nn.Module) -> None:
        """Replica 0 shares the module's buffers; where it did not run, take the first one's that did."""
        with torch.no_grad():
            for own, updated in zip(self.module.buffers(), replica.buffers(), strict=True):
                own.copy_(updated)


@register
class BalancedDP(ReplicaStrategy):
    name = "balanced_dp"
    summary = "DataParallel with fewer samples on GPU 0 (gpu0_bsz)"
    options = (GPU0_BSZ, LOSS_ON)

    def gpu0_bsz(self, case: Case) -> int:
        """Samples of a micro-batch on the first device; ValueError above an even share.

        `auto` is the default share here: the driver puts a number in its place before a launch
        is timed. A parity check runs at the default share, whatever auto chooses.
        """
        micro, even = whole_micro_batch(case), whole_micro_batch(case) // case.num_devices
        text = case.setting("gpu0_bsz")
        if text is None or text == AUTO:
            return micro // (2 * case.num_devices)
        if int(text) > even:
            raise ValueError(
                f"gpu0_bsz {text} is above the even share of {even} ({micro} samples over {case.num_devices} "
                f"devices), where nothing would be balanced; use 0 to {even}, or strategy dp"
            )
        return int(text)

    def chunk_sizes(self, case: Case) -> tuple[int, ...]:
        return tuple(split_sizes(whole_micro_batch(case), case.num_devices, self.gpu0_bsz(case)))

    def parity_samples_per_device(self, case: Case) -> int:
        text = case.setting("gpu0_bsz")
        # By default the first device takes half of that: more than one sample, for a BatchNorm over each batch.
        return 4 if text is None or text == AUTO else max(2, int(text))

    def wrap(self, model: nn.Module, context: Context) -> nn.Module:
        case, gpu0_bsz = context.case, self.gpu0_bsz(context.case)
        if case.device_type == "cpu":
            return HostDataParallel(model, lambda batch: split_sizes(batch, case.num_devices, gpu0_bsz))
        return BalancedDataParallel(model, gpu0_bsz, device_ids=list(context.devices))
