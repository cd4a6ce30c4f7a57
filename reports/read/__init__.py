"""Reading the folders that other commands write. Nothing in them is trusted."""
