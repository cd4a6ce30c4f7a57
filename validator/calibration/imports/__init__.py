"""Import of measurements by other tools as points, cluster files and measured steps: nccl-tests, nvidia-smi, Kineto, Chakra."""
