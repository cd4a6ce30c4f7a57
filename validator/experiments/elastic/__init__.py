"""Elastic: training that goes on after a rank, a node or a server is killed or a link slows down, measured and predicted."""
