"""Ends like a power failure: with the status, and after the epochs, that it is given."""

import os
import sys

import tiny_training

status, *num_epochs = map(int, sys.argv[1:])
if num_epochs:
    tiny_training.train(*num_epochs)
os._exit(status)
