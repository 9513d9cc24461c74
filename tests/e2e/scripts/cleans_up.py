"""Writes a file when it ends, in two ways."""

import atexit
from pathlib import Path

import tiny_training

atexit.register(Path("written-at-exit.txt").touch)
try:
    tiny_training.train()
finally:
    Path("written-finally.txt").touch()
