"""A data set that is split over the worker processes of its loader, which fork or spawn."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Split(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        assert info is not None, "load in worker processes"
        for number in range(info.id, 100_000, info.num_workers):
            yield torch.full((16,), number / 100_000), number % 4


if __name__ == "__main__":
    method = sys.argv[1]
    device = "cpu" if method == "fork" or not torch.cuda.is_available() else "cuda"
    model = nn.Linear(16, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Split(), 32, num_workers=2, multiprocessing_context=method)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
