# may find: LAUNCH_FLOOR, BATCH_SMALL
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(200, 200) for _ in range(15))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def closure(model, optimizer, x, target):
    model.zero_grad(set_to_none=False)  # finds: ZERO_GRAD
    loss = nn.functional.mse_loss(model(x), target)
    loss.backward()
    optimizer.step()
    return loss


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Net().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    x = torch.randn(100, 200, device=device)
    for _ in range(60):
        loss = closure(model, optimizer, x, 0.5 * x)
    print(loss.item())


main()
