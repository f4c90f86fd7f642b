"""Measuring: workers, their control, the training step, rounds, and parity."""
