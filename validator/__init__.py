"""The validator: trains for real, one process per rank, and records every phase in the `Run` that the simulator returns.

Nothing here imports torch before a function that needs it is called.
"""
