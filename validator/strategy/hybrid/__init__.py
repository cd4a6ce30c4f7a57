"""Hybrids on a rank: replicas whose ranks share layers, tokens and experts, and keep their parameters identical."""
