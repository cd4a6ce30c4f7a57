"""Torch modules of the simulator's models, one module per simulator layer."""
