"""The payload of one training step's collectives, as this process calls them.

Every collective of `torch.distributed` is an operator (`c10d::allreduce_`, ...), also where C++ calls it
(DDP's reducer, its broadcast of buffers), and a `TorchDispatchMode` sees it. Autograd runs the backward
pass in the calling thread on a CPU, and in threads of its own on CUDA, which take over the caller's modes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bench.errors import in_short
from bench.measuring.control import Message
from bench.schema import Case, DeviceTrace
from bench.strategies import Strategy
from bench.structure import tensors_of

NAMESPACES = ("c10d", "_c10d_functional")
NO_PAYLOAD = ("barrier", "monitored_barrier_", "wait_tensor")
THREADS = "the replicas of one process copy between devices without torch's collectives, which alone are seen"


class Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, adds up the payload of each collective: the bytes of its largest argument.

    An all-reduce counts what is reduced, an all-gather what it gathers from all, a reduce-scatter what it takes.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.payload_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in NAMESPACES and func.overloadpacket.__name__ not in NO_PAYLOAD:
            every = [*args, *(kwargs or {}).values()]
            self.payload_bytes += max((_bytes(argument) for argument in every), default=0)
        return func(*args, **(kwargs or {}))


def _bytes(argument: Any) -> int:
    """Bytes of one argument: a tensor, or lists of them."""
    found = [argument] if isinstance(argument, Tensor) else tensors_of(argument)
    return sum(tensor.numel() * tensor.element_size() for tensor in found)


def traffic_of(step: Callable[[], object], case: Case, strategy: Strategy) -> Message:
    """What one more `step` communicates, as this rank says it to the driver: `bytes`, or why they are `unknown`.

    Every rank must call it. It never raises: the launch's figures are complete without it.
    """
    if case.num_devices == 1:
        return {"bytes": 0}
    if strategy.one_process:
        return {"unknown": THREADS}
    try:
        with Traffic() as seen:
            step()
    except Exception as error:
        return {"unknown": f"the step that was looked at failed: {in_short(error)}"}
    return {"bytes": seen.payload_bytes}


def with_traffic(traces: Sequence[DeviceTrace], replies: Sequence[Message]) -> tuple[DeviceTrace, ...]:
    """The devices' traces with what each rank said; one rank speaks for all devices of its process."""
    said = list(replies) if len(replies) == len(traces) else [replies[0]] * len(traces)
    return tuple(
        replace(trace, communication_bytes=reply.get("bytes"), communication_unknown=reply.get("unknown"))  # type: ignore[arg-type]
        for trace, reply in zip(traces, said, strict=True)
    )
