"""The watcher: a process of its own that reads, beside a launch, what its devices and workers are doing.

Of its own, because DataParallel is bound by the interpreter lock, which a reader must not share;
light, since it holds neither torch nor pandas; and the only process that keeps NVML open.
"""
