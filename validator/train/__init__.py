"""Training on a rank: steps, data, models, recomputation and emulated compute."""
