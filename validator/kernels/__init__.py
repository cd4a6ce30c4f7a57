"""Measured times of kernels: tables of them, and devices that are fitted to them."""
