"""Model parallelism: tensor, sequence, context and expert parallelism, and branches of a model on different devices."""
