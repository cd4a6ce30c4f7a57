"""The planner: the best of all ways to train a model on a number of devices, by how much, and how sure that is."""
