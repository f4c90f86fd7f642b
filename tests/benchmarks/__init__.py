"""Benchmarks of the suite itself. Each is a script: `python -m tests.benchmarks.NAME`."""
