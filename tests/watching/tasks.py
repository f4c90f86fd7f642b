"""A worker task for launches that are watched."""

from __future__ import annotations

import time

from bench.measuring.control import Channel
from bench.measuring.tasks import Job


def run_out_of_memory_in_a_round(job: Job, channel: Channel) -> None:
    """Ready, then one round that goes well, then one in which the allocator runs out."""
    channel.reply({})
    for number, _ in enumerate(channel.commands()):
        channel.phase(f"round {number}")
        time.sleep(0.3)
        if number == 1:
            raise MemoryError("planted")
        channel.reply({})
