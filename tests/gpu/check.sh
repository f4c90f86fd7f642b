#!/usr/bin/env bash
# Every check that needs a GPU, in under 6 minutes on one card.
#   tests/gpu/check.sh [FOLDER]     the runs' tables are kept in FOLDER (default: results/reference)
# It uses the python3 that is there; torch, pytest, pytest-benchmark, pandas and the other packages of
# pyproject.toml must be installed. Multi-GPU code is tried with the one card listed twice.
set -uo pipefail
cd "$(dirname "$0")/../.."
export DPBENCH_GPU_RESULTS="${1:-results/reference}"
mkdir -p "$DPBENCH_GPU_RESULTS"
python3 -m bench doctor
python3 -m pytest tests/gpu -rA -p no:cacheprovider --benchmark-disable
status=$?
python3 -m tests.benchmarks.watcher_cost --device-type cuda
exit "$status"
