"""Sensitivity of the throughput to the cluster, the batch and the servers."""
