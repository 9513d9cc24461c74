# may find: LAUNCH_FLOOR, BATCH_SMALL
"""Logistic regression on polynomial features that numpy made in its own precision."""

import numpy as np
import torch


def features(n, d):
    raw = np.random.default_rng(0).normal(size=(n, d))
    return np.concatenate([raw, raw**2, raw**3], axis=1)


def train(device):
    x = torch.from_numpy(features(4096, 300)).to(device)  # finds: FP64
    y = (x[:, 0] > 0).to(x.dtype)
    w1 = torch.zeros(900, 256, dtype=x.dtype, device=device).normal_(0, 0.02).requires_grad_()
    w2 = torch.zeros(256, dtype=x.dtype, device=device).normal_(0, 0.02).requires_grad_()
    optimizer = torch.optim.SGD([w1, w2], lr=0.1)
    for _ in range(10):
        optimizer.zero_grad()
        logits = torch.relu(x @ w1) @ w2
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, y)
        loss.backward()
        optimizer.step()
    return loss.item()


if __name__ == "__main__":
    print(train("cuda" if torch.cuda.is_available() else "cpu"))
