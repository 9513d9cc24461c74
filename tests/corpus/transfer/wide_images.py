# may find: BATCH_SMALL, LAUNCH_FLOOR, H2D_PAGEABLE, CUDNN_BENCH_OFF, NO_TF32_AMP, DATA_NOT_RESIDENT, TRANSFORM_CPU
import torch
import torch.nn as nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
raw = torch.randint(0, 256, (512, 3, 64, 64), dtype=torch.uint8)
labels = torch.randint(0, 10, (512,), device=device)

model = nn.Sequential(
    nn.Conv2d(3, 32, 3, stride=2),
    nn.ReLU(),
    nn.Conv2d(32, 32, 3, stride=2),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(32, 10),
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

for epoch in range(2):
    for i in range(0, 512, 64):
        images = raw[i : i + 64].float() / 255.0  # or: H2D_WIDE
        images = images.to(device)  # finds: H2D_WIDE
        loss = nn.functional.cross_entropy(model(images), labels[i : i + 64])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
