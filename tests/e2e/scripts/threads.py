"""Threads that compute beside the training, and outlive it."""

import threading
import time

import tiny_training
import torch


def compute_forever():
    weights = torch.randn(8, 8)
    while True:
        weights = torch.tanh(weights @ weights)
        time.sleep(0.001)


for _ in range(3):
    threading.Thread(target=compute_forever).start()
tiny_training.train()
