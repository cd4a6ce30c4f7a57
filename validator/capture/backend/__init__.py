"""A GPU that does not exist: CUDA tensors on virtual memory, whose operators are recorded and mostly not computed."""
