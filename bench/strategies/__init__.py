"""Strategies: one file each. `registry` finds them."""

from bench.strategies.base import LOOKS, Context, LossCheck, Option, StepLoss, Strategy, register, registry

__all__ = ["LOOKS", "Context", "LossCheck", "Option", "StepLoss", "Strategy", "register", "registry"]
