"""Model parallelism on a rank: tensor, sequence, context and expert parallelism."""
