"""Check of a machine with GPUs in one command (`make gpu-check`): everything for which such a machine is needed.

Other modules are imported only after `dependencies` has made their packages available.
"""
