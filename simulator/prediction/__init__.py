"""Parts of a prediction: how many steps are simulated, the run of their timelines, its scaling and its accounting."""
