"""Metrics: one file each. `registry` finds them."""

from bench.metrics.base import Measured, Value, metric, registry

__all__ = ["Measured", "Value", "metric", "registry"]
