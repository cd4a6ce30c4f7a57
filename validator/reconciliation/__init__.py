"""Reconciliation: what was predicted laid beside what was measured, and where they part."""
