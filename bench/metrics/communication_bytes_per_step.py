"""What a device hands to its peers, and takes from them, in one step."""

from __future__ import annotations

from collections.abc import Iterable

from bench.metrics.base import Value, metric
from bench.schema import Metric, Trace

COMMUNICATION_BYTES_PER_STEP = Metric(
    name="communication_bytes_per_step",
    unit="bytes",
    meaning="payload of the collectives that a device calls in one optimizer step (of each call its largest argument: "
    "what is reduced, what has been gathered), from one step after timing; an algorithm on the wire may move twice "
    "of it, or less",
    better="lower",
    per_device=True,
    combine="largest",
)
NOT_SEEN = "not looked at"


@metric(COMMUNICATION_BYTES_PER_STEP)
def communication_bytes_per_step(trace: Trace) -> Iterable[Value]:
    """One value per device of a timed launch; 0 on one device; null with the reason where it cannot be seen.

    Verified against theory, byte by byte, for DDP, FSDP and FSDP1 over gloo. Over NCCL the same operators are
    called, some from autograd's threads, to which torch hands the state that sees them (`at::ThreadLocalState`);
    that has not been tried on a GPU.
    """
    if not trace.round_seconds:
        return
    for position, device in enumerate(trace.devices):
        seen = device.communication_bytes
        unknown = (device.communication_unknown or NOT_SEEN) if seen is None else None
        yield Value(value=seen, device_index=position, note=unknown)
