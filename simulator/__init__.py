"""The simulator: a `Scenario` in, a predicted `Run` out. Nothing here imports torch before a function that needs it is
called."""
