"""Devices: time of layers on GPUs, other accelerators and CPU cores."""
