"""Workloads: one file each. `registry` finds them."""

from bench.data.base import Batch, DataSource
from bench.workloads.base import Size, Workload, register, registry

__all__ = ["Batch", "DataSource", "Size", "Workload", "register", "registry"]
