"""Search for the best configuration to train a model on a given number of devices."""
