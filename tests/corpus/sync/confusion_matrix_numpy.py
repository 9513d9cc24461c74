# may find: LAUNCH_FLOOR, BATCH_SMALL, CUDNN_BENCH_OFF
import numpy as np
import torch
from torch import nn


def fast_hist(pred, label, n):
    keep = (label >= 0) & (label < n)
    return np.bincount(n * label[keep] + pred[keep], minlength=n * n).reshape(n, n)


class SegmentationTrainer:
    num_classes = 6

    def __init__(self):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.net = nn.Sequential(
            nn.Conv2d(3, 24, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(24, 24, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(24, self.num_classes, 1),
        ).to(self.device)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        self.hist = np.zeros((self.num_classes, self.num_classes))

    def train_one(self, image, label):
        out = self.net(image)
        loss = nn.functional.cross_entropy(out, label)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        pred = out.argmax(1).detach().cpu().numpy()  # finds: SYNC_METRICS
        truth = label.cpu().numpy()  # finds: SYNC_METRICS
        self.hist += fast_hist(pred.ravel(), truth.ravel(), self.num_classes)

    def iou(self):
        inter = np.diag(self.hist)
        return inter / (self.hist.sum(0) + self.hist.sum(1) - inter + 1e-9)


trainer = SegmentationTrainer()
images = torch.randn(32, 3, 48, 48, device=trainer.device)
masks = torch.randint(0, 6, (32, 48, 48), device=trainer.device)
for epoch in range(6):
    for i in range(0, 32, 8):
        trainer.train_one(images[i : i + 8], masks[i : i + 8])
    print(epoch, "mIoU", trainer.iou().mean())
