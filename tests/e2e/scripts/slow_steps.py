"""Each step takes two seconds."""

import time

import tiny_training

tiny_training.train(on_step=lambda: time.sleep(2))
