"""The launcher of the measuring tests, for launches that are watched."""

from tests.measuring.conftest import launcher, session_launcher

__all__ = ["launcher", "session_launcher"]
