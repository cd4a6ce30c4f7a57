"""Collectives by themselves: their time on a cluster, by formula or message by message."""
