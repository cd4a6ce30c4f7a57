"""What other tools have measured, as points, cluster files and measured steps: nccl-tests, nvidia-smi, Kineto, Chakra."""
