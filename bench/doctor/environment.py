"""Environment variables that change how torch, CUDA, NCCL, gloo or OpenMP work."""

from __future__ import annotations

from collections.abc import Iterator

from bench.doctor.box import Box
from bench.doctor.findings import Note, Status, check, info, ok
from bench.recording.environment import training_variables

AREA = "environment"
OFF = ("", "0", "false", "off", "no")
# Variable, status where it is set and not off, what it does.
KNOWN: tuple[tuple[str, Status, str], ...] = (
    ("CUDA_LAUNCH_BLOCKING", "warning", "every kernel is waited for: step times are those of debugging"),
    ("PYTORCH_NO_CUDA_MEMORY_CACHING", "warning", "every allocation goes to the driver: slow, and peaks mean nothing"),
    ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "warning", "TF32 is on in rows that say fp32"),
    ("TORCH_DISTRIBUTED_DEBUG", "warning", "DETAIL checks every collective: ddp and fsdp are slower"),
    ("NCCL_P2P_DISABLE", "warning", "NCCL copies through host memory although GPUs may reach one another"),
    ("NCCL_SHM_DISABLE", "warning", "NCCL sends over sockets what could go through memory"),
    ("NCCL_DEBUG", "info", "NCCL prints into the workers' logs; INFO and TRACE cost time"),
    ("NCCL_ALGO", "info", "NCCL may not choose the fastest way by itself"),
    ("NCCL_PROTO", "info", "NCCL may not choose the fastest way by itself"),
    ("CUDA_MODULE_LOADING", "info", "EAGER loads all kernels at start: launches take longer and more memory"),
    ("CUDA_DEVICE_MAX_CONNECTIONS", "info", "1 keeps copies and kernels from overlapping as they usually do"),
    ("PYTORCH_CUDA_ALLOC_CONF", "info", "the allocator reserves memory in another way: peaks reserved differ"),
    ("PYTORCH_ALLOC_CONF", "info", "the allocator reserves memory in another way: peaks reserved differ"),
    ("OMP_NUM_THREADS", "info", "torch's own threads are set by the suite all the same; other libraries follow it"),
    ("MKL_NUM_THREADS", "info", "torch's own threads are set by the suite all the same; other libraries follow it"),
    ("OMP_THREAD_LIMIT", "warning", "workers may get fewer threads than the suite sets and records"),
    ("OMP_PROC_BIND", "warning", "every worker may tie its threads to the same first cores"),
    ("GOMP_CPU_AFFINITY", "warning", "every worker ties its threads to the same cores"),
    ("KMP_AFFINITY", "warning", "every worker may tie its threads to the same cores"),
)
# Off is a setting of its own here: 0 switches TF32 off in rows that say tf32.
WHATEVER_VALUE: tuple[tuple[str, Status, str], ...] = (
    ("NVIDIA_TF32_OVERRIDE", "warning", "it overrules the precision that a row says"),
)
# Beyond those that a run stores.
ALSO = ("GOMP_CPU_AFFINITY",)


@check(AREA, "variables")
def variables(box: Box) -> Iterator[Note]:
    pairs = {item.name: item.value for item in training_variables(box.environment)}
    pairs |= {name: box.environment[name] for name in ALSO if name in box.environment}
    judged = [entry for entry in KNOWN if pairs.get(entry[0], "").lower() not in OFF]
    judged += [entry for entry in WHATEVER_VALUE if entry[0] in pairs]
    for name, status, effect in judged:
        fact, remedy = f"{name}={pairs.pop(name)}", f"unset {name}, unless you mean to measure it"
        yield Note(status=status, fact=fact, effect=effect, remedy=remedy)
    if pairs:
        yield info(", ".join(f"{name}={value}" for name, value in pairs.items()), "recorded with every run")
    elif not judged:
        yield ok("none is set that changes training")
