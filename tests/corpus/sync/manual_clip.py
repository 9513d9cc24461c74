# may find: LAUNCH_FLOOR, BATCH_SMALL
import torch
from torch import nn, optim

MAX_NORM = 1.0


def clip_gradients(parameters, max_norm):
    """Scale the gradients so that their joint norm stays below max_norm."""
    grads = [p.grad for p in parameters if p.grad is not None]
    norms = [float(g.norm()) for g in grads]  # finds: SYNC_CLIP
    total = sum(n * n for n in norms) ** 0.5
    scale = max_norm / (total + 1e-6)
    if scale < 1:
        for g in grads:  # or: OPT_LOOP
            g.mul_(scale)  # finds: OPT_LOOP
    return total


def make_model(depth):
    layers = [nn.Linear(20, 64), nn.ELU()]
    for _ in range(depth):
        layers += [nn.Linear(64, 64), nn.ELU()]
    return nn.Sequential(*layers, nn.Linear(64, 1))


def train(device, steps=80):
    model = make_model(8).to(device)
    opt = optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    x = torch.randn(512, 20, device=device)
    y = 5.0 * (x[:, :1] * x[:, 1:2])
    for _ in range(steps):
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        clip_gradients(list(model.parameters()), 0.05 * MAX_NORM)
        opt.step()
    return loss.item()


if __name__ == "__main__":
    print(train("cuda" if torch.cuda.is_available() else "cpu"))
