"""Elastic training, which continues after a rank, a node or a server is killed or a link slows down, measured and predicted."""
