"""Micro-benchmarks of what the simulator needs to know; each runs on ranks that share a process group."""
