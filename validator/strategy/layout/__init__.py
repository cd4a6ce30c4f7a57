"""Ranks on a mesh: teams, their collectives and messages."""
