"""The generator of C code for whole training steps on the CPU."""
