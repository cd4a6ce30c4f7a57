"""Verification that ranks trained correctly, against one process that follows the same rule."""
