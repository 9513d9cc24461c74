"""Rules about the kernels that a device picks."""
