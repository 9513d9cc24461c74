# device: V100 SXM2 16GB
# finds in the step: CUDNN_BENCH_OFF
# may find: BATCH_SMALL, NO_TF32_AMP, CHANNELS_LAST, LAUNCH_FLOOR
import torch
from torch import nn

torch.manual_seed(0)


class FCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 128, 5, padding=2),
            nn.ReLU(),
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(128, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, 5, 3, padding=1)
        )

    def forward(self, x):
        return self.decoder(self.encoder(x))


class Trainer:
    def __init__(self, model):
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = model.to(self.device)
        self.opt = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    def step(self, image, mask):
        self.opt.zero_grad()
        loss = nn.functional.cross_entropy(self.model(image), mask)
        loss.backward()
        self.opt.step()
        return loss


trainer = Trainer(FCN())
image = torch.rand(12, 3, 80, 80, device=trainer.device)
mask = torch.randint(0, 5, (12, 80, 80), device=trainer.device)
for _ in range(5):
    loss = trainer.step(image, mask)
print(loss.item())
