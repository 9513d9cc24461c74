"""A small convolutional network tells textures apart: colour images of CIFAR-10's size."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

NUM_CLASSES = 10


class Textures(Dataset):
    """Waves across a 32×32 image; the class is their direction, the colour is chance."""

    def __init__(self, num_images, seed):
        self.num_images = num_images
        self.seed = seed
        self.row, self.column = torch.meshgrid(
            torch.arange(32.0), torch.arange(32.0), indexing="ij"
        )

    def __len__(self):
        return self.num_images

    def __getitem__(self, index):
        chance = torch.Generator().manual_seed(self.seed + index)
        label = index % NUM_CLASSES
        angle = math.pi * label / NUM_CLASSES
        frequency, phase = (torch.rand(2, generator=chance) * torch.tensor([0.5, 6.3])).tolist()
        along = math.cos(angle) * self.row + math.sin(angle) * self.column
        wave = torch.sin((0.5 + frequency) * along + phase)
        colour = torch.rand(3, 1, 1, generator=chance) + 0.3
        noise = 0.3 * torch.randn(3, 32, 32, generator=chance)
        return colour * wave + noise, label


def conv_block(num_inputs, num_outputs):
    return nn.Sequential(
        nn.Conv2d(num_inputs, num_outputs, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(num_outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(num_outputs, num_outputs, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(num_outputs),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    )


class SmallCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(conv_block(3, 32), conv_block(32, 64), conv_block(64, 128))
        self.classifier = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(128, NUM_CLASSES),
        )

    def forward(self, images):
        return self.classifier(self.features(images))


def evaluate(model, loader, device):
    model.eval()
    num_correct = torch.zeros((), dtype=torch.long, device=device)
    with torch.no_grad():
        for images, labels in loader:
            predicted = model(images.to(device)).argmax(dim=1)
            num_correct += (predicted == labels.to(device)).sum()
    return num_correct.item() / len(loader.dataset)


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    is_cuda = device == "cuda"
    train_loader = DataLoader(
        Textures(6_400, seed=0), batch_size=64, shuffle=True, pin_memory=is_cuda
    )
    val_loader = DataLoader(Textures(1_000, seed=10**6), batch_size=250, pin_memory=is_cuda)

    model = SmallCNN().to(device)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True
    )
    num_epochs = 3
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=num_epochs)

    for epoch in range(num_epochs):
        model.train()
        for i, (images, labels) in enumerate(train_loader):
            images = images.to(device, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            loss = criterion(model(images), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if i % 20 == 0:
                print(f"epoch {epoch} [{i:3d}/{len(train_loader)}] loss {loss.item():.3f}")
        scheduler.step()
        print(f"epoch {epoch} validation accuracy {evaluate(model, val_loader, device):.3f}")


if __name__ == "__main__":
    main()
