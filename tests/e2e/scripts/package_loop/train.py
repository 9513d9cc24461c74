import sys

import torch
from torch import nn

from package_loop.model import create_model

if __name__ == "__main__":
    batch_size = int(sys.argv[1])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = create_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(96, 16), torch.randint(0, 4, (96,)))
    for _ in range(1_000):
        for x, y in torch.utils.data.DataLoader(data, batch_size=batch_size):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
            optimizer.step()
