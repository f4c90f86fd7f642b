"""Gauges of a real card, and the allocator's peaks beside what NVML sees."""

from __future__ import annotations

from tests.gpu.gpu_runs import GpuRuns

EVERY_DATACENTRE_CARD = (
    "utilization_percent", "memory_used_bytes", "power_watts", "energy_joules", "sm_clock_hertz", "memory_clock_hertz",
    "temperature_celsius", "throttle_reasons",
)  # fmt: skip


def test_gauges_are_there_or_say_why_not(gpu_runs: GpuRuns) -> None:
    timeline = gpu_runs.get("bf16").timeline
    assert timeline["measured"].any()
    for gauge in EVERY_DATACENTRE_CARD:
        named = timeline["unavailable"].map(lambda items, name=gauge: any(item["name"] == name for item in items))
        assert (timeline[gauge].notna() | named).any(), gauge
    seen = [gauge for gauge in EVERY_DATACENTRE_CARD if timeline[gauge].notna().any()]
    print("gauges seen:", ", ".join(seen))
    assert "memory_used_bytes" in seen
    assert timeline["temperature_celsius"].dropna().between(10, 110).all()


def test_power_and_energy_tell_the_same(gpu_runs: GpuRuns) -> None:
    """Over a measured window the energy counter and the mean power agree, roughly: power is an average over 1 s."""
    timeline = gpu_runs.get("bf16").timeline
    window = timeline[timeline["measured"] & timeline["energy_joules"].notna() & timeline["power_watts"].notna()]
    for key, rows in window.groupby(["case_id", "launch"]):
        seconds = rows["elapsed_seconds"].max() - rows["elapsed_seconds"].min()
        if seconds < 2:
            continue
        joules = rows["energy_joules"].max() - rows["energy_joules"].min()
        assert 0.5 < joules / (rows["power_watts"].mean() * seconds) < 2.0, key


def test_allocated_reserved_and_nvml_are_three_figures_in_order(gpu_runs: GpuRuns) -> None:
    cases = gpu_runs.get("bf16").cases
    for case in cases.itertuples():
        allocated, reserved = case.peak_allocated_bytes_max, case.peak_reserved_bytes_max
        assert 0 < allocated <= reserved, case.case_id
        # NVML also counts the context and the libraries, of every process on the card.
        assert case.device_memory_used_bytes_max >= reserved, case.case_id


def test_utilization_is_a_share(gpu_runs: GpuRuns) -> None:
    cases = gpu_runs.get("bf16").cases
    for name in ("utilization_percent_max", "utilization_p95_percent_max"):
        assert cases[name].dropna().between(0, 100).all()
    assert (cases["utilization_percent_max"] > 0).any()


def test_the_device_row_tells_uuid_and_what_is_taken_before_a_run(gpu_runs: GpuRuns) -> None:
    (device,) = gpu_runs.get("one").data.run.devices
    assert device.uuid is not None and device.uuid.startswith(("GPU-", "MIG-"))
    assert device.reserved_memory_bytes is not None and device.idle_memory_used_bytes is not None
    assert device.memory_bytes is not None and device.idle_memory_used_bytes < device.memory_bytes
