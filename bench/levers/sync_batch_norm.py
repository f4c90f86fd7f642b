"""BatchNorm over the samples of all ranks instead of each rank's own."""

from __future__ import annotations

from torch import nn

from bench.errors import RefusedError
from bench.levers.base import Abilities, Blocks, Lever, register
from bench.schema import Case

ONE_PROCESS = "SyncBatchNorm works between processes, and this strategy has one"


@register
class SyncBatchNorm(Lever):
    name = "sync_batch_norm"
    meaning = "on: every BatchNorm becomes a torch.nn.SyncBatchNorm, with the statistics of all ranks' samples"
    changes = (
        "what is trained, where each device has few samples; costs a communication per layer, forward and backward"
    )
    default = "off"
    values = ("off", "on")
    needs = "2 devices or more, and a model with BatchNorm"
    not_on = {"cpu": "torch.nn.SyncBatchNorm works on GPUs only"}
    not_with = dict.fromkeys(("single", "dp", "balanced_dp"), ONE_PROCESS)

    def unsupported(self, case: Case, abilities: Abilities) -> str | None:
        if case.num_devices == 1:
            return f"{self.name}={self.of(case)} changes nothing on 1 device"
        return super().unsupported(case, abilities)

    def prepare_model(self, case: Case, model: nn.Module, blocks: Blocks) -> Blocks:
        norms = [part for part in model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
        if not norms:
            raise RefusedError("sync_batch_norm=on replaces BatchNorm, and the model has none")
        if model in norms or any(norm in blocks for norm in norms):
            raise RefusedError(
                "sync_batch_norm=on would replace a block of the workload; name no BatchNorm in blocks()"
            )
        nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        return blocks
