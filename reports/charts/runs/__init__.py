"""Charts of runs, predicted and measured."""
