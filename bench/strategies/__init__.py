"""Strategies: one file each. `registry` finds them."""

from bench.strategies.base import Context, Option, StepLoss, Strategy, register, registry

__all__ = ["Context", "Option", "StepLoss", "Strategy", "register", "registry"]
