# may find: LAUNCH_FLOOR, BATCH_SMALL, CUDNN_BENCH_OFF, NO_TF32_AMP
"""Splits each batch over two GPUs in the old way."""

import torch
from torch import nn


class Trainer:
    def __init__(self, gpus=(0, 1)):
        network = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 49, 10),
        )
        self.model = torch.nn.DataParallel(  # finds: DATAPARALLEL
            network.cuda(), device_ids=list(gpus)
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.criterion = nn.CrossEntropyLoss().cuda()

    def step(self, x, y):
        loss = self.criterion(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


if __name__ == "__main__":
    trainer = Trainer()
    images = torch.rand(128, 3, 32, 32).cuda()
    labels = torch.randint(0, 10, (128,)).cuda()
    for _ in range(20):
        trainer.step(images, labels)
