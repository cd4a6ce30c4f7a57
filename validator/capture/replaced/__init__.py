"""What is replaced of PyTorch in a played rank, in addition to the device, communication and compilers."""
