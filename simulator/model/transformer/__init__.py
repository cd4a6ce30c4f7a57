"""Transformers: decoders, encoders, attention and mixtures of experts."""
