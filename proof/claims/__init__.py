"""Claims of published articles, tested by prediction and by measurement in an emulated network."""
