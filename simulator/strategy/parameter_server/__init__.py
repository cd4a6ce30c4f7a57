"""Parameter servers: placement of ranks, sharding of parameters, and the program of a step."""
