"""Workloads: one file each. `registry` finds them; `find` brings in one from outside the suite."""

from bench.data.base import Batch, DataSource
from bench.workloads._finding import Adapted, adapted, find
from bench.workloads.base import Size, Workload, register, registry

__all__ = ["Adapted", "Batch", "DataSource", "Size", "Workload", "adapted", "find", "register", "registry"]
