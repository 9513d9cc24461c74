"""C code generated for whole training steps on the CPU."""
