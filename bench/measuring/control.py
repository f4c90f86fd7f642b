"""Control between the driver and its workers: a TCPStore on loopback, plain JSON only.

The driver posts numbered commands; every rank answers each one. A rank that fails posts its
error with a time, so that the first cause is known even when its peers fail because of it.
"""

from __future__ import annotations

import json
import socket
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

import torch
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from bench.errors import BenchError, RefusedError, text_of

LOOPBACK = "127.0.0.1"
FOREVER = timedelta(days=7)
Plain: TypeAlias = "str | int | float | bool | None | list[Plain] | dict[str, Plain]"
Message: TypeAlias = Mapping[str, Plain]

MOST_CHARACTERS = 64 * 1024

# What the host allocator and oneDNN say when memory runs out; CUDA has its own exception.
HOST_MEMORY_WORDS = ("can't allocate memory", "could not create a primitive", "not enough memory", "bad_alloc")

# Named in what torch raises where a peer is lost, or a device fails.
MACHINE_WORDS = ("gloo", "NCCL", "CUDA error", "CUDNN_STATUS", "CUBLAS_STATUS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a launch's workers find the driver."""

    port: int
    prefix: str
    host: str = LOOPBACK


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What a rank said before it left. refused: its strategy cannot take the model, which is no fault."""

    rank: int
    time: float
    phase: str
    message: str
    traceback: str
    out_of_memory: bool
    refused: bool = False


def serve() -> TCPStore:
    """The driver's store. It listens on loopback only, on a free port."""
    listener = socket.create_server((LOOPBACK, 0))
    port = listener.getsockname()[1]
    return TCPStore(
        LOOPBACK, port, is_master=True, wait_for_workers=False, timeout=FOREVER, master_listen_fd=listener.detach()
    )


def connect(address: Address) -> Store:
    """A worker's view of the store, under its launch's own prefix."""
    store = TCPStore(address.host, address.port, is_master=False, wait_for_workers=False, timeout=FOREVER)
    return PrefixStore(address.prefix, store)


class Channel:
    """The worker's end: `commands()` one by one, a `reply` to each, the `phase` it is in."""

    def __init__(self, address: Address, rank: int) -> None:
        self._address, self.rank = address, rank
        self.store = connect(address)
        self._phase, self._replies = "start", 0

    def new_store(self, name: str) -> Store:
        """A connection of its own, for a process group: its threads must not wait for `commands`."""
        return PrefixStore(name, connect(self._address))

    def phase(self, name: str) -> None:
        """Name what this rank does from now on, for the row of a launch that fails."""
        self._phase = name
        self.store.set(f"phase/{self.rank}", name)

    def commands(self) -> Iterator[Message]:
        """Every command of the driver, up to the one whose `op` is `finish`, included."""
        for number in range(1 << 31):
            command: Message = json.loads(self.store.get(f"command/{number}"))
            yield command
            if command["op"] == "finish":
                return

    def reply(self, message: Message) -> None:
        """Answer the next unanswered request; number 0 says that the worker is ready."""
        self.store.set(f"reply/{self._replies}/{self.rank}", json.dumps(message))
        self._replies += 1

    def fail(self, error: BaseException) -> None:
        """Post what went wrong, before anything else can."""
        refused = isinstance(error, RefusedError)
        self.store.set(
            f"error/{self.rank}",
            json.dumps(
                {
                    "rank": self.rank,
                    "time": time.time(),
                    "phase": self._phase,
                    "message": cut(text_of(error) if refused else f"{type(error).__name__}: {text_of(error)}"),
                    "traceback": cut(_traceback(error)),
                    "out_of_memory": out_of_memory(error),
                    "refused": refused,
                }
            ),
        )


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except Exception:
        return "".join(traceback.format_tb(error.__traceback__))


def cut(text: str) -> str:
    """At most `MOST_CHARACTERS` of a text, its beginning and its end: the store refuses very long values."""
    if len(text) <= MOST_CHARACTERS:
        return text
    half = MOST_CHARACTERS // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def out_of_memory(error: BaseException) -> bool:
    """The device's or the host's allocator ran out."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(words in text_of(error) for words in HOST_MEMORY_WORDS)


def may_be_refused(error: Exception) -> bool:
    """Whether a strategy that cannot take a model may fail so: not where memory, a peer, a device or a file failed."""
    return not isinstance(error, BenchError) and not of_machine(error)


def of_machine(error: Exception) -> bool:
    """Whether memory ran out, or a peer, a device or a file failed: no model is the cause of that."""
    torn = isinstance(error, RuntimeError) and any(words in text_of(error) for words in MACHINE_WORDS)
    return torn or isinstance(error, OSError) or out_of_memory(error)


class Control:
    """The driver's end of one launch."""

    def __init__(self, store: Store, prefix: str, world_size: int) -> None:
        self._store = PrefixStore(prefix, store)
        self.world_size = world_size
        self._commands = self._replies = 0

    def command(self, message: Message) -> None:
        """Tell every rank what to do next."""
        self._store.set(f"command/{self._commands}", json.dumps(message))
        self._commands += 1

    def take_replies(self) -> list[Message] | None:
        """Every rank's answer to the next request, in rank order; None while one is missing."""
        keys = [f"reply/{self._replies}/{rank}" for rank in range(self.world_size)]
        if not self._store.check(keys):
            return None
        self._replies += 1
        return [json.loads(self._store.get(key)) for key in keys]

    def replied(self, rank: int) -> bool:
        """This rank has answered the next request."""
        return bool(self._store.check([f"reply/{self._replies}/{rank}"]))

    def failures(self) -> list[Failure]:
        """What ranks have posted before they left, the earliest first."""
        keys = self._present("error")
        return sorted((Failure(**json.loads(self._store.get(key))) for key in keys), key=lambda failure: failure.time)

    def phase(self, rank: int) -> str:
        """What a rank was last known to do."""
        key = f"phase/{rank}"
        return self._store.get(key).decode() if self._store.check([key]) else "start"

    def _present(self, kind: str) -> Sequence[str]:
        return [key for key in (f"{kind}/{rank}" for rank in range(self.world_size)) if self._store.check([key])]
