"""Strategies: one file each. `registry` finds them."""

from bench.strategies.base import Context, Option, Strategy, register, registry

__all__ = ["Context", "Option", "Strategy", "register", "registry"]
