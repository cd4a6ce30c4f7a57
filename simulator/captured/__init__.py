"""Predictions of captured training scripts: from recorded operators, streams, collectives and allocations to a Program."""
