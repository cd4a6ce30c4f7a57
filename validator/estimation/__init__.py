"""Statistics of measured times: fits of parameters, straight lines, slow members of a group, and modes of repetitions."""
