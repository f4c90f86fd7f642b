"""A run in progress: opened, driven launch by launch, shown, recorded."""
