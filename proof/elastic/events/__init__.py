"""Real training along the events of a scenario: hosts that fail, are interrupted with notice, join and come back."""
