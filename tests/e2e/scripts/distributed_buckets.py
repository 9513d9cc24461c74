"""A script for torchrun, whose gradients take several buckets; two micro-steps make a step.

Arguments: a model, the cap of buckets in MB (0 for torch's own), and a file for the bytes that the
second step exchanges.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

name, cap_mb, file = sys.argv[1], int(sys.argv[2]), sys.argv[3]
dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
device = "cuda" if torch.cuda.is_available() else "cpu"
layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
made = {
    "transformer": lambda: nn.Sequential(nn.TransformerEncoder(layer, 8), nn.Linear(256, 4)),
    "convolution": lambda: nn.Sequential(
        *(nn.Sequential(nn.Conv1d(256, 256, 9), nn.BatchNorm1d(256)) for _ in range(4))
    ),
    "linear": lambda: nn.Sequential(nn.Linear(256, 4096), nn.ReLU(), nn.Linear(4096, 4096)),
}[name]()
model = DistributedDataParallel(made.to(device), bucket_cap_mb=cap_mb or None)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
shape = (2, 256, 64) if name == "convolution" else (2, 8, 256)
exchanged: list[int] = []


def note_bytes(group: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    exchanged.append(bucket.buffer().nbytes)
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


if device == "cpu":  # the real job notes what it exchanges
    model.register_comm_hook(None, note_bytes)
for _ in range(4):
    exchanged.clear()
    optimizer.zero_grad()
    with model.no_sync():
        model(torch.randn(shape, device=device)).square().mean().backward()
    model(torch.randn(shape, device=device)).square().mean().backward()
    optimizer.step()
if device == "cpu" and dist.get_rank() == 0:
    Path(file).write_text(json.dumps(exchanged), encoding="utf-8")
dist.destroy_process_group()
