"""Workloads made from a model class of a library, by its name."""
