"""Analyses of a scenario beyond one prediction: comparisons, sensitivities, failures, studies and plans."""
