"""Data parallelism: buckets, gradient synchronisation, ZeRO, compression, local SGD and data loading."""
