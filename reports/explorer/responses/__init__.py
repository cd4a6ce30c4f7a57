"""What the explorer responds with: predictions, curves, comparisons with a pinned scenario, and plans."""
