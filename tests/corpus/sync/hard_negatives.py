# may find: LAUNCH_FLOOR, BATCH_SMALL
"""A single-shot detector head: positives by nonzero, negatives by a threshold."""

import torch
from torch import nn


class Head(nn.Module):
    def __init__(self, classes=8, anchors=3):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, anchors * classes, 1)
        )
        self.classes = classes

    def forward(self, x):
        y = self.conv(x)
        return y.permute(0, 2, 3, 1).reshape(-1, self.classes)


class DetectionLoss:
    def __call__(self, scores, targets):
        positives = torch.nonzero(targets > 0).squeeze(1)  # finds: SYNC_SHAPE
        ce = nn.functional.cross_entropy(scores, targets, reduction="none")
        negatives = torch.masked_select(ce, targets == 0)  # finds: SYNC_SHAPE
        k = min(3 * len(positives), len(negatives))
        return ce[positives].mean() + negatives.topk(k).values.mean()


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    head = Head().to(device)
    criterion = DetectionLoss()
    optimizer = torch.optim.SGD(head.parameters(), lr=1e-2, momentum=0.9)
    maps = torch.randn(8, 16, 20, 20, device=device)
    targets = torch.randint(-30, 8, (8 * 20 * 20 * 3,), device=device).clamp_(min=0)
    for it in range(60):
        loss = criterion(head(maps), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{loss.item():.3f}")


if __name__ == "__main__":
    main()
