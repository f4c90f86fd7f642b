"""ResNet50 and BERT in bf16 autocast at real size: they run, and what they reach is printed and kept."""

from __future__ import annotations

import pytest

from tests.gpu.gpu_runs import GpuRuns


@pytest.mark.parametrize("workload", ["resnet50", "bert_small"])
@pytest.mark.parametrize("strategy", ["single", "ddp"])
def test_bf16_runs_at_real_size(gpu_runs: GpuRuns, workload: str, strategy: str) -> None:
    run = gpu_runs.get("bf16")
    case = run.case(workload, strategy)
    assert (case["status"], case["precision"], case["size"]) == ("ok", "bf16", "standard"), case["reason"]
    print(
        f"{case['case_id']}: {case['samples_per_second']:,.0f} samples/s "
        f"({case['samples_per_second_low']:,.0f} to {case['samples_per_second_high']:,.0f}), "
        f"peak {case['peak_allocated_bytes_max'] / 2**30:.2f} GiB"
    )
    assert case["parity_status"] == "ok" and case["parity_error"] < 1e-4


def test_resnet50_compiled_with_channels_last(gpu_runs: GpuRuns) -> None:
    case = gpu_runs.get("compiled").case("resnet50", "single")
    assert (case["status"], case["precision"]) == ("ok", "bf16"), case["reason"]
    print(
        f"{case['case_id']}: {case['samples_per_second']:,.0f} samples/s, {case['first_step_seconds']:.1f} s first step"
    )


def test_runs_end_well(gpu_runs: GpuRuns) -> None:
    for name in ("one", "twice", "auto", "compiled", "bf16"):
        run = gpu_runs.get(name)
        assert run.exit_status == 0, run.output[-4000:]
