"""Commands that predict: they need neither torch nor a cluster."""
