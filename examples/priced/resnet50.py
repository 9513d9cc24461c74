"""ResNet-50 on generated images of ImageNet's size, in float16 on a GPU."""

import sys

import torch
from transformers import ResNetConfig, ResNetForImageClassification

BATCH_SIZE = int(sys.argv[1]) if len(sys.argv) > 1 else 256

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = ResNetForImageClassification(ResNetConfig(num_labels=1000)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
images = torch.rand(BATCH_SIZE, 3, 224, 224, device=device)
labels = torch.randint(0, 1000, (BATCH_SIZE,), device=device)

for _ in range(30):
    optimizer.zero_grad()
    with torch.autocast(device.type, torch.float16, enabled=device.type == "cuda"):
        loss = torch.nn.functional.cross_entropy(model(images).logits, labels)
    loss.backward()
    optimizer.step()
