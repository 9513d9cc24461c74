# healthy
# device: T4
# looks like: CHANNELS_LAST, CUDNN_BENCH_OFF, CONV_BIAS, CUDNN_BENCH_VARY
# may find: BATCH_SMALL
import torch
from torch import nn

torch.backends.cudnn.benchmark = True
device = "cuda" if torch.cuda.is_available() else "cpu"


def conv(a, b, stride=1):
    return nn.Sequential(
        nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True)
    )


model = nn.Sequential(
    conv(8, 128, 2),
    conv(128, 128),
    conv(128, 128),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(128, 16),
)
model = model.to(device, memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
scaler = torch.amp.GradScaler(device)
images = torch.randn(32, 8, 64, 64, device=device).to(memory_format=torch.channels_last)
labels = torch.randint(0, 16, (32,), device=device)
for step in range(4):
    with torch.autocast(device):
        loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print(loss.item())
