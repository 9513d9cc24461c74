"""A script for torchrun: a process for each GPU, which exchange their gradients."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

rank = int(os.environ["LOCAL_RANK"])
dist.init_process_group("nccl")
torch.cuda.set_device(rank)
data = TensorDataset(torch.randn(8_192, 16), torch.randint(0, 4, (8_192,)))
sampler = DistributedSampler(data)
loader = DataLoader(data, 32, sampler=sampler)
net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).to(rank)
model = DistributedDataParallel(net, device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(1_000):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.to(rank)), y.to(rank))
        loss.backward()
        optimizer.step()
dist.destroy_process_group()
