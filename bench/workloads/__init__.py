"""Workloads: one file each. `registry` finds them."""

from bench.data.base import Batch, DataSource
from bench.workloads.base import Size, Workload, find, register, registry

__all__ = ["Batch", "DataSource", "Size", "Workload", "find", "register", "registry"]
