"""Regions that a script compiles: traced by torch.compile as usual, run as the fused kernels that a compiler would make."""
