"""A small U-Net finds rectangles and discs in noise, in mixed precision where there is a GPU."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIZE = 96


class Shapes(Dataset):
    """Noisy images with a rectangle (class 1) and a disc (class 2) on the background (class 0)."""

    def __init__(self, num_images):
        self.num_images = num_images
        self.row, self.column = torch.meshgrid(
            torch.arange(SIZE), torch.arange(SIZE), indexing="ij"
        )

    def __len__(self):
        return self.num_images

    def __getitem__(self, index):
        chance = torch.Generator().manual_seed(index)
        top, left, row, column = torch.randint(0, SIZE - 30, (4,), generator=chance).tolist()
        height, width, radius = torch.randint(10, 30, (3,), generator=chance).tolist()
        mask = torch.zeros(SIZE, SIZE, dtype=torch.long)
        mask[top : top + height, left : left + width] = 1
        mask[(self.row - row - 15) ** 2 + (self.column - column - 15) ** 2 < radius**2 / 4] = 2
        image = mask.float() / 2 + 0.3 * torch.randn(SIZE, SIZE, generator=chance)
        return image.unsqueeze(0), mask


class DoubleConv(nn.Sequential):
    def __init__(self, num_inputs, num_outputs):
        super().__init__(
            nn.Conv2d(num_inputs, num_outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(num_outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(num_outputs, num_outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(num_outputs),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    def __init__(self, num_classes, widths=(16, 32, 64, 128)):
        super().__init__()
        self.encoders = nn.ModuleList(
            DoubleConv(a, b) for a, b in zip((1, *widths[:-2]), widths[:-1], strict=True)
        )
        self.pool = nn.MaxPool2d(2)
        self.bottom = DoubleConv(widths[-2], widths[-1])
        self.ups = nn.ModuleList(
            nn.ConvTranspose2d(2 * width, width, 2, stride=2) for width in reversed(widths[:-1])
        )
        self.decoders = nn.ModuleList(
            DoubleConv(2 * width, width) for width in reversed(widths[:-1])
        )
        self.head = nn.Conv2d(widths[0], num_classes, 1)

    def forward(self, x):
        skips = []
        for encoder in self.encoders:
            x = encoder(x)
            skips.append(x)
            x = self.pool(x)
        x = self.bottom(x)
        for up, decoder in zip(self.ups, self.decoders, strict=True):
            x = decoder(torch.cat((skips.pop(), up(x)), dim=1))
        return self.head(x)


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    use_amp = device == "cuda"
    torch.backends.cudnn.benchmark = True

    loader = DataLoader(Shapes(800), batch_size=8, shuffle=True, pin_memory=use_amp)
    model = UNet(num_classes=3).to(device)
    criterion = nn.CrossEntropyLoss(weight=torch.tensor([0.2, 1.0, 1.0], device=device))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda", enabled=use_amp)

    for epoch in range(2):
        epoch_loss = torch.zeros((), device=device)
        num_correct = torch.zeros((), dtype=torch.long, device=device)
        for images, masks in loader:
            images = images.to(device, non_blocking=True)
            masks = masks.to(device, non_blocking=True)

            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.float16, enabled=use_amp):
                logits = model(images)
                loss = criterion(logits, masks)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

            epoch_loss += loss.detach()
            num_correct += (logits.argmax(dim=1) == masks).sum()
        accuracy = num_correct.item() / (len(loader.dataset) * SIZE * SIZE)
        print(f"epoch {epoch}  loss {epoch_loss.item() / len(loader):.3f}  pixels {accuracy:.3f}")


if __name__ == "__main__":
    main()
