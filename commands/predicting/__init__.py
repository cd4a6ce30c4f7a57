"""Commands that predict. They need neither torch nor a cluster."""
