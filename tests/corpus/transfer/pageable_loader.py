# may find: BATCH_SMALL, NO_TF32_AMP, LAUNCH_FLOOR, LOADER_WORKERS0, LOADER_RESPAWN
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class SensorStream(IterableDataset):
    """New windows for as long as the training lasts."""

    def __iter__(self):
        while True:
            window = torch.rand(512, 64).mul_(2).sub_(1)
            yield window, window[:, -1].sum() > 0


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(512, 64, 5, padding=2)
        self.fc = nn.Linear(64, 1)

    def forward(self, x):
        return self.fc(torch.relu(self.conv(x)).mean(-1)).squeeze(1)


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(SensorStream(), batch_size=256, num_workers=2)
    for step, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)  # finds: H2D_PAGEABLE
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(x), y.float())
        loss.backward()
        optimizer.step()
        if step == 15:
            break
    print(loss.item())
