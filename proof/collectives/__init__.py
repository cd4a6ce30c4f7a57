"""Fits of the constants of collectives' timing to nccl-tests lines."""
