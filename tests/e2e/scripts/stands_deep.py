"""Hangs below a million calls."""

import sys
import time

import torch

sys.setrecursionlimit(10**7)


def go_down(state: torch.Tensor, depth: int) -> torch.Tensor:
    if depth == 0:
        time.sleep(600)  # here it stands
    return go_down(state, depth - 1)


go_down(torch.ones(1), 1_000_000)
