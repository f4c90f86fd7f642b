"""Samples for the workloads: seeded synthetic ones, the shipped MNIST subset, and the user's own folders."""
