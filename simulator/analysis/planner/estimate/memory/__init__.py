"""Memory of the fullest rank, for arrays of configurations."""
