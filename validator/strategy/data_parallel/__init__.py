"""Data parallelism on a rank: buckets, sharding, compression and averaging of gradients."""
