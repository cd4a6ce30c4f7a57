"""What a capture replaces in addition to the device, communication and compilers: checkpoints, and what it does not support."""
