"""Results as console text: one module per kind of result."""
