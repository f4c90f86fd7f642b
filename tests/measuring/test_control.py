"""What a failing rank says, whatever its error is like."""

from __future__ import annotations

from bench.measuring.control import MOST_CHARACTERS, Address, Channel, Control, serve
from tests.measuring.support import await_true


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def said(error: BaseException) -> tuple[str, str]:
    store = serve()
    Channel(Address(port=store.port, prefix="launch0"), rank=0).fail(error)
    control = Control(store, "launch0", 1)
    assert await_true(lambda: bool(control.failures()), seconds=10)  # a long message takes its time
    (failure,) = control.failures()
    return failure.message, failure.traceback


def test_error_without_a_printable_message_still_names_its_type() -> None:
    message, traceback = said(Unprintable())
    assert message == "Unprintable: (its message cannot be printed: RuntimeError)"
    assert isinstance(traceback, str)


def test_very_long_message_keeps_its_beginning_and_its_end() -> None:
    message, traceback = said(ValueError("begin" + "x" * 20_000_000 + "end"))
    assert message.startswith("ValueError: begin") and message.endswith("end")
    assert MOST_CHARACTERS < len(message) < MOST_CHARACTERS + 100
    assert len(traceback) < MOST_CHARACTERS + 100
