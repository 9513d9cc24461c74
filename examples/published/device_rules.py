"""What PyTorch promises about devices, rule by rule: runs each and prints whether it holds.

Needs a GPU; rules about several GPUs are left out where there is one. Each rule is a line of
Python that is evaluated as it stands, with a fresh ``x`` on the CPU, its copy ``x_gpu`` and a
``layer`` on the CPU. One line of JSON is printed for each.
"""

import copy
import json
import sys
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Rule:
    """A promise, and an expression that is true, or raises, where it is kept."""

    says: str
    code: str
    raises: type[Exception] | None = None
    num_gpus: int = 1


RULES = (
    Rule("a tensor is created on the CPU", "torch.ones(3).device == torch.device('cpu')"),
    Rule("or where it is told to be", "torch.ones(3, device='cuda').is_cuda"),
    Rule("the default type is float32", "torch.get_default_dtype() is torch.float32"),
    Rule(".cuda() returns a copy on the GPU", "x.cuda().device == torch.device('cuda:0')"),
    Rule(".cuda() leaves the original", "(x.cuda(), x.is_cuda)[1] is False"),
    Rule(".cpu() brings the values back", "torch.equal(x_gpu.cpu(), x)"),
    Rule(".to() does both", "x.to('cuda').is_cuda and not x_gpu.to('cpu').is_cuda"),
    Rule(".to() the same device copies nothing", "x_gpu.to('cuda') is x_gpu and x.cpu() is x"),
    Rule(".to() a type keeps the device", "x_gpu.to(torch.float64).is_cuda"),
    Rule(".to() a tensor takes its type too", "x.double().to(x_gpu).dtype is torch.float32"),
    Rule("a result is where its operands are", "(x_gpu @ x_gpu.t()).relu().sum().is_cuda"),
    Rule("a result keeps the type", "(2 * x_gpu.double()).dtype is torch.float64"),
    Rule("..._like keeps the device", "torch.zeros_like(x_gpu).is_cuda"),
    Rule("new_... keeps the device", "x_gpu.new_zeros(2).is_cuda"),
    Rule("a view shares the GPU's memory", "x_gpu[0].data_ptr() == x_gpu.data_ptr()"),
    Rule("mixing devices raises", "x + x_gpu", raises=RuntimeError),
    Rule("mixing raises in a layer", "layer(x_gpu)", raises=RuntimeError),
    Rule("a CPU tensor of one number may mix", "(x_gpu * torch.tensor(2.0)).is_cuda"),
    Rule("copy_ reads another device", "torch.equal(torch.empty_like(x).copy_(x_gpu), x)"),
    Rule("copy_ stays on its own device", "torch.empty_like(x_gpu).copy_(x).is_cuda"),
    Rule("NumPy cannot read a GPU", "x_gpu.numpy()", raises=TypeError),
    Rule("a module moves in place", "layer.to('cuda') is layer and layer.weight.is_cuda"),
    Rule("a module on the GPU takes its tensors", "layer.cuda()(x_gpu).is_cuda"),
    Rule("a gradient is with its parameter", "gradient_of(layer.cuda(), x_gpu).is_cuda"),
    Rule("a gradient goes back over a copy", "not gradient_of(lambda t: t.cuda(), x).is_cuda"),
    Rule("a GPU that is not there raises", "x.to('cuda:99')", raises=RuntimeError),
    Rule("GPUs are numbered", "x.to('cuda:1').get_device() == 1", num_gpus=2),
    Rule("mixing GPUs raises", "x_gpu + x.to('cuda:1')", raises=RuntimeError, num_gpus=2),
    Rule("copy_ reads another GPU", "x.to('cuda:1').copy_(x_gpu).get_device() == 1", num_gpus=2),
    Rule("device() chooses the GPU", "cuda_in(1, x).get_device() == 1", num_gpus=2),
    Rule("DataParallel splits 50", "data_parallel(50).sizes == [25, 25]", num_gpus=2),
    Rule("its halves are on two GPUs", "data_parallel(50).devices == [0, 1]", num_gpus=2),
    Rule("it gathers 50 on the first", "data_parallel(50).output == (50, 'cuda:0')", num_gpus=2),
    Rule("its results are right", "data_parallel(50).is_output_right", num_gpus=2),
    Rule("its gradients are right", "data_parallel(50).are_gradients_right", num_gpus=2),
)


def gradient_of(function, x):
    """Return the gradient of a sum: of a module's weight, else of the input."""
    x = x.detach().clone().requires_grad_()
    function(x).sum().backward()
    return function.weight.grad if isinstance(function, nn.Module) else x.grad


def cuda_in(index, x):
    with torch.cuda.device(index):
        return x.cuda()


class SpyingLayer(nn.Linear):
    """A layer that notes the batches that it sees; copies of it note them in the same list."""

    def __init__(self, num_inputs, num_outputs):
        super().__init__(num_inputs, num_outputs)
        self.seen = []

    def forward(self, batch):
        self.seen.append((batch.get_device(), len(batch)))
        return super().forward(batch)


@dataclass(frozen=True)
class Split:
    """What DataParallel did with a batch."""

    sizes: list[int]
    devices: list[int]
    output: tuple[int, str]
    is_output_right: bool
    are_gradients_right: bool


def data_parallel(batch_size):
    """Train a step on two GPUs, and the same step on the CPU."""
    torch.manual_seed(0)
    batch = torch.randn(batch_size, 4)
    layer = SpyingLayer(4, 2)
    alone = copy.deepcopy(layer)
    layer = layer.cuda()
    output = nn.DataParallel(layer, device_ids=[0, 1])(batch.cuda())
    output.square().sum().backward()
    expected = alone(batch)
    expected.square().sum().backward()
    pairs = zip(layer.parameters(), alone.parameters(), strict=True)
    seen = sorted(layer.seen)
    return Split(
        sizes=[size for _, size in seen],
        devices=[device for device, _ in seen],
        output=(len(output), str(output.device)),
        is_output_right=torch.allclose(output.cpu(), expected, atol=1e-5),
        are_gradients_right=all(
            torch.allclose(own.grad.cpu(), other.grad, rtol=1e-4, atol=1e-4) for own, other in pairs
        ),
    )


def check(rule):
    """Evaluate a rule; return whether it holds and what was found."""
    x = torch.arange(6.0).view(2, 3)
    names = {"x": x, "x_gpu": x.cuda(), "layer": nn.Linear(3, 2)}
    try:
        found = eval(rule.code, globals(), names)
    except Exception as error:  # a rule that is broken may raise anything
        message = str(error).split("\n", 1)[0]
        is_expected = rule.raises is not None and isinstance(error, rule.raises)
        return is_expected, f"{type(error).__name__}: {message}"
    return rule.raises is None and found is True, repr(found)


def main():
    if not torch.cuda.is_available():
        sys.exit("no GPU here")
    for rule in RULES:
        if rule.num_gpus <= torch.cuda.device_count():
            holds, found = check(rule)
            line = {"rule": rule.says, "code": rule.code, "holds": holds, "found": found}
            print(json.dumps(line))


if __name__ == "__main__":
    main()
