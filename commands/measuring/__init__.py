"""Commands that measure clusters, train for real, or compare predictions with measurements."""
