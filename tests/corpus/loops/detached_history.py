# healthy
# looks like: GRAPH_RETAINED, SYNC_ITEM
# may find: LAUNCH_FLOOR, BATCH_SMALL
import torch
from torch import nn


def losses_of(model, x):
    reconstruction = model(x)
    mse = nn.functional.mse_loss(reconstruction, x)
    sparsity = reconstruction.abs().mean()
    return {"mse": mse, "sparsity": 1e-2 * sparsity}


def main(epochs=3):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(nn.Linear(50, 10), nn.ReLU(), nn.Linear(10, 50)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = torch.randn(3000, 50, device=device)
    for _ in range(epochs):
        history = []
        total = torch.zeros((), device=device)
        for x in data.split(100):
            parts = losses_of(model, x)
            loss = 0
            for value in parts.values():
                loss += value
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
            history.append(parts["mse"].detach())
        print(total.item() / 30, torch.stack(history).std().item())


main()
