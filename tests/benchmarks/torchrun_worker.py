"""Worker of `launch_overhead` under torchrun: gets as far as a launch's worker does before its first step."""

from __future__ import annotations

import sys

import torch.distributed as dist

from bench import strategies, workloads
from bench.measuring.batches import make_batches
from bench.measuring.step import Trainer
from bench.measuring.tasks import ROTATING_BATCHES
from tests.benchmarks.launch_overhead import job_for


def main() -> None:
    """Join, build, wrap, make the data, leave."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    job = job_for(sys.argv[1])
    workload, strategy = workloads.registry.get(job.case.workload)("quick"), strategies.registry.get("ddp")
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    devices = (torch.device("cpu"),)
    Trainer(workload=workload, strategy=strategy, case=job.case, devices=devices, mesh=mesh, seed=job.seed)
    rank = dist.get_rank()
    make_batches(workload, strategy, job.case, job.source, rank=rank, seed=job.seed, count=ROTATING_BATCHES)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
