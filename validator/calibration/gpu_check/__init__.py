"""gpucheck: everything that a machine with GPUs is needed for, in one command (`make gpu-check`).

Modules are imported once `dependencies` has seen to what they need.
"""
