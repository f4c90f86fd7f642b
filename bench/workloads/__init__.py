"""Workloads: one file each. `registry` finds them."""

from bench.workloads.base import Batch, DataSource, Size, Workload, register, registry

__all__ = ["Batch", "DataSource", "Size", "Workload", "register", "registry"]
