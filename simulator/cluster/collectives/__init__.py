"""Collective operations: their algorithms, the choice that libraries make, and their time on a cluster's links."""
