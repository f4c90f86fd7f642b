"""One GPU as the gauges ask it: NVML's plain queries, counters made into rates, GPM, processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from bench.nvml import Answer, Nvml

MIB, KIB = 2**20, 2**10
# GPM compares two samples; NVIDIA wants at least 100 ms between them.
LEAST_GPM_SECONDS = 0.1
GPM_METRICS = (
    "NVML_GPM_METRIC_SM_UTIL",
    "NVML_GPM_METRIC_PCIE_TX_PER_SEC",
    "NVML_GPM_METRIC_PCIE_RX_PER_SEC",
    "NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC",
    "NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC",
)
# Members of NVML's union for a field's value, by the number of its type.
FIELD_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
ALL_LINKS = 2**32 - 1
NOT_AVAILABLE = (2**32 - 1, 2**64 - 1)
PENDING = Answer()
"""Nothing to tell yet: what compares two readings has had only one."""


class Gpu:
    """A device's handle, and what has to be remembered between readings.

    `now` tells the time of a reading (s); `own_pids` are the worker processes of this launch.
    """

    def __init__(
        self, nvml: Nvml, handle: Any, own_pids: Sequence[int], now: Callable[[], float] = time.perf_counter
    ) -> None:
        self.nvml, self.own_pids, self._handle, self._now = nvml, frozenset(own_pids), handle, now
        self._counters: dict[str, tuple[float, float]] = {}
        self._gpm: Gpm | None = None

    def ask(self, function: str, *arguments: Any) -> Answer:
        """The answer of one of NVML's device queries."""
        return self.nvml.ask(function, self._handle, *arguments)

    def number(self, function: str, *arguments: Any, scale: float = 1.0) -> Answer:
        """A query whose answer is a number, times `scale`."""
        answer = self.ask(function, *arguments)
        if answer.value is None:
            return answer
        if answer.value in NOT_AVAILABLE:
            return Answer(reason="NVML says that it is not available")
        return Answer(value=answer.value * scale)

    def constant(self, name: str) -> Any:
        """One of pynvml's constants; None where this version of it lacks the name."""
        return getattr(self.nvml.constants, name, None)

    def rate(self, name: str, counter: float) -> Answer:
        """Growth of a counter per second since it was told last."""
        now = self._now()
        before = self._counters.get(name)
        self._counters[name] = (now, counter)
        if before is None or now <= before[0] or counter < before[1]:  # a counter that was reset starts anew
            return PENDING
        return Answer(value=(counter - before[1]) / (now - before[0]))

    def field_rate(self, name: str) -> Answer:
        """Growth per second of a field of NVML's, over all links of the device."""
        field = self.constant(name)
        if field is None:
            return Answer(reason="not known to this version of nvidia-ml-py", unsupported=True)
        answer = self.ask("nvmlDeviceGetFieldValues", [(field, ALL_LINKS)])
        if answer.value is None:
            return answer
        (found,) = answer.value
        if found.nvmlReturn != 0:
            return self.nvml.refusal(found.nvmlReturn)
        return self.rate(name, getattr(found.value, FIELD_MEMBERS[found.valueType]))

    def gpm(self, metric: str) -> Answer:
        """The mean of one of GPM's metrics since its last sample."""
        if self._gpm is None:
            self._gpm = Gpm(self)
        return self._gpm.read(metric, self._now())

    def close(self) -> None:
        """Free what NVML holds for this device."""
        if self._gpm is not None:
            self._gpm.close()


class Gpm:
    """GPM of one device: the metrics between the last two of its samples, all at once."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu, self._taken = gpu, -LEAST_GPM_SECONDS
        self._samples: list[Any] = []
        self._answers: dict[str, Answer] = {}
        self._told: set[str] = set()
        self._refused = self._open()

    def _open(self) -> Answer | None:
        support = self._gpu.ask("nvmlGpmQueryDeviceSupport")
        if support.value is None:
            return support
        if not support.value.isSupportedDevice:
            return Answer(reason="not supported by this device: GPM is there on Hopper and later", unsupported=True)
        return None

    def read(self, metric: str, now: float) -> Answer:
        """The metric; pending until there are two samples, and where it was already told."""
        if self._refused is not None:
            return self._refused
        if now - self._taken >= LEAST_GPM_SECONDS:
            failed = self._sample(now)
            if failed is not None:
                return failed
        if metric in self._told:
            return PENDING
        self._told.add(metric)
        return self._answers.get(metric, PENDING)

    def _sample(self, now: float) -> Answer | None:
        """Take a sample into a buffer of NVML's, and compare it with the one before."""
        full = len(self._samples) == 2
        allocated = Answer(value=self._samples.pop(0)) if full else self._gpu.nvml.ask("nvmlGpmSampleAlloc")
        if allocated.value is None:
            return allocated
        taken = self._gpu.ask("nvmlGpmSampleGet", allocated.value)
        if taken.value is None:
            self._gpu.nvml.ask("nvmlGpmSampleFree", allocated.value)
            return taken
        self._samples.append(allocated.value)
        self._taken = now
        self._told.clear()
        self._answers = self._compare() if len(self._samples) == 2 else {}
        return None

    def _compare(self) -> dict[str, Answer]:
        nvml = self._gpu.nvml
        known = [(name, number) for name in GPM_METRICS if (number := self._gpu.constant(name)) is not None]
        request = nvml.constants.c_nvmlGpmMetricsGet_t()
        request.version = nvml.constants.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(known)
        request.sample1, request.sample2 = self._samples
        for place, (_, number) in enumerate(known):
            request.metrics[place].metricId = number
        answer = nvml.ask("nvmlGpmMetricsGet", request)
        if answer.value is None:
            return {name: answer for name, _ in known}
        found = [answer.value.metrics[place] for place in range(len(known))]
        return {
            name: Answer(value=metric.value) if metric.nvmlReturn == 0 else nvml.refusal(metric.nvmlReturn)
            for (name, _), metric in zip(known, found, strict=True)
        }

    def close(self) -> None:
        for sample in self._samples:
            self._gpu.nvml.ask("nvmlGpmSampleFree", sample)
        self._samples = []
