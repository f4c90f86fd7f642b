"""Troubles that others have reported with NVML, each as the behaviour that must hold, on the stub library."""
