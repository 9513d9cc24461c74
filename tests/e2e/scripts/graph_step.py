"""Whole-network capture, as torch's notes on CUDA semantics show it; the same steps eagerly."""

import sys

import torch

N, D_in, H, D_out = 64, 512, 128, 16
is_eager = "eager" in sys.argv[1:]

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(D_in, H),
    torch.nn.Dropout(p=0.2),
    torch.nn.Linear(H, D_out),
    torch.nn.Dropout(p=0.1),
).cuda()
loss_fn = torch.nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

static_input = torch.randn(N, D_in, device="cuda")
static_target = torch.randn(N, D_out, device="cuda")


def train(data, target):
    y_pred = model(data)
    loss = loss_fn(y_pred, target)
    loss.backward()
    optimizer.step()


g = torch.cuda.CUDAGraph()
if not is_eager:
    s = torch.cuda.Stream()
    s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            train(static_input, static_target)
    torch.cuda.current_stream().wait_stream(s)

    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(g):
        train(static_input, static_target)

real_inputs = [torch.rand_like(static_input) for _ in range(2000)]
real_targets = [torch.randn(N, D_out, device="cuda") for _ in range(2000)]

for data, target in zip(real_inputs, real_targets, strict=True):
    static_input.copy_(data)
    static_target.copy_(target)
    if is_eager:
        optimizer.zero_grad(set_to_none=True)
        train(static_input, static_target)
    else:
        g.replay()
