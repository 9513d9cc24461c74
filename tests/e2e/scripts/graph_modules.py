"""Partial-network capture, as torch's notes on CUDA semantics show it, with a gradient scaler."""

from itertools import chain

import torch

N, D_in, H, D_out = 64, 512, 128, 16

torch.manual_seed(0)
module1 = torch.nn.Linear(D_in, H).cuda()
module2 = torch.nn.Linear(H, D_out).cuda()
module3 = torch.nn.Linear(H, D_out).cuda()
loss_fn = torch.nn.MSELoss()
optimizer = torch.optim.SGD(
    chain(module1.parameters(), module2.parameters(), module3.parameters()), lr=0.1
)
scaler = torch.amp.GradScaler("cuda")

x = torch.randn(N, D_in, device="cuda")
h = torch.randn(N, H, device="cuda", requires_grad=True)
with torch.autocast("cuda", torch.float16, cache_enabled=False):
    module1 = torch.cuda.make_graphed_callables(module1, (x,))
    module2 = torch.cuda.make_graphed_callables(module2, (h,))
    module3 = torch.cuda.make_graphed_callables(module3, (h,))

for _ in range(2000):
    data = torch.rand_like(x)
    target = torch.randn(N, D_out, device="cuda")
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast("cuda", torch.float16, cache_enabled=False):
        tmp = module1(data)
        tmp = module2(tmp) if tmp.sum().item() > 0 else module3(tmp)
        loss = loss_fn(tmp, target)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
