"""Launching ranks: processes on this machine or a group started by torchrun or srun, and how they find one another."""
