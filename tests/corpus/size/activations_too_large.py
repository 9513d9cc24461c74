# device: GTX 960
# finds in the step: MEMORY_FULL
# may find: NO_TF32_AMP, CUDNN_BENCH_OFF, CONV_BIAS, CHANNELS_LAST, CUDNN_BENCH_VARY
"""Full-resolution activations of a denoiser: more than the 2 GiB of the card."""

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
layers = [nn.Conv2d(3, 16, 1), nn.ReLU()]
for _ in range(5):
    layers += [nn.Conv2d(16, 16, 1), nn.ReLU()]
net = nn.Sequential(*layers, nn.Conv2d(16, 3, 1)).to(device)
optimizer = torch.optim.Adam(net.parameters())
images = torch.rand(16, 3, 512, 512, device=device)

for step in range(3):
    optimizer.zero_grad()
    loss = nn.functional.l1_loss(net(images), images)
    loss.backward()
    optimizer.step()
print(loss.item())
