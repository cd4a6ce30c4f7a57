"""Maps of the fastest strategy over two fields."""
