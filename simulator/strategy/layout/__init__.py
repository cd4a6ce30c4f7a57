"""Placement of ranks: device mesh, rank classes on nodes, resources and paths of messages."""
