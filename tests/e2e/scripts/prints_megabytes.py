"""Prints 150 MB before the first step, and 1 MB more with each."""

import sys

import tiny_training

line = "x" * 2**20
for _ in range(100):
    print(line)
for _ in range(50):
    print(line, file=sys.stderr)
tiny_training.train(on_step=lambda: print(line))
