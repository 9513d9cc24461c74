"""A small residual network behind two workers that augment its pictures."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self):
        self.pictures = torch.randint(0, 256, (256, 3, 40, 40), dtype=torch.uint8)

    def __len__(self):
        return 40_000

    def __getitem__(self, index):
        picture = self.pictures[index % 256].float() / 255
        if torch.rand(()) < 0.5:
            picture = picture.flip(-1)
        larger = nn.functional.interpolate(picture[None], size=(48, 48), mode="bilinear")  # here
        picture = larger[0, :, 8:40, 8:40] * (0.8 + 0.4 * torch.rand(()))
        return (picture - 0.5) / 0.25, index % 2


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 1)
        )

    def forward(self, x):
        return torch.relu(x + self.layers(x))


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, stride=2), Residual(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Pictures(), 64, shuffle=True, num_workers=2)
for pictures, labels in loader:
    pictures, labels = pictures.to(device), labels.to(device)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(pictures), labels).backward()
    optimizer.step()
