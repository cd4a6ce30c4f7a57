"""NCCL and RCCL: the choice of algorithm and protocol (tuner), and how long it takes (timing)."""
