"""How much faster `breakeven.fast_step` is than the loop that it replaces.

Run ``python benchmarks/fast_step.py`` for a table of small networks, ``--only NAME`` for some of
them, ``--inductor`` for torch's compiler in place of the generated code, ``--torch-compile`` for a
loop whose model ``torch.compile`` compiled (either takes seconds to a minute more for each),
``--jax`` for the same step under JAX where it consists of linear layers, ``--json`` for one JSON
document. Each round times all ways one after the other; a ratio is of the smallest times, beside it
that of the medians. Eager is the better of one thread and all; generated code has all of them, and
uses them where a step is large.

The bound is what the products of a step would take at this core's peak, which is measured by a
product of two large matrices on one thread.
"""

from __future__ import annotations

import argparse
import copy
import functools
import itertools
import json
import operator
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from breakeven.processor import cpu_name
from faststep import fast_step

NUM_BATCHES = 16
# A sample is as many steps as take about this long: short against a disturbance.
SAMPLE_S = 0.004


class Recurrent(nn.Module):
    """A recurrent layer and a linear one on its last output."""

    def __init__(self, layer: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer = layer(8, 32, batch_first=True)
        self.head = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return one number for each sequence."""
        return self.head(self.layer(x)[0][:, -1])


# Of an explicit Runge-Kutta method: what each stage takes of the slopes before it, and the weights.
Tableau = tuple[tuple[tuple[float, ...], ...], tuple[float, ...]]
RK4: Tableau = ((), (1 / 2,), (0, 1 / 2), (0, 0, 1)), (1 / 6, 1 / 3, 1 / 3, 1 / 6)
DORMAND_PRINCE: Tableau = (
    (
        (),
        (1 / 5,),
        (3 / 40, 9 / 40),
        (44 / 45, -56 / 15, 32 / 9),
        (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
        (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    ),
    (35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)


class NeuralOde(nn.Module):
    """Ten steps of a Runge-Kutta method."""

    def __init__(self, tableau: Tableau = RK4, num_steps: int = 10) -> None:
        super().__init__()
        self.tableau, self.num_steps = tableau, num_steps
        self.field = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 2))

    def forward(self, y: Tensor) -> Tensor:
        """Return the state after a time of one."""
        rows, weights = self.tableau
        h = 1 / self.num_steps
        for _ in range(self.num_steps):
            slopes: list[Tensor] = []
            for row in rows:
                slopes.append(self.field(y + moved(row, slopes, h) if slopes else y))
            y = y + moved(weights, slopes, h)
        return y


def moved(factors: tuple[float, ...], slopes: list[Tensor], h: float) -> Tensor:
    """Return a step of a length along slopes, of which some count nothing."""
    parts = [h * a * k for a, k in zip(factors, slopes, strict=True) if a]
    return functools.reduce(operator.add, parts)


class GraphConvolution(nn.Module):
    """Two layers on a graph of 100 nodes, whose adjacency is dense."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 7)
        adjacency = (torch.rand(100, 100) < 0.05).float() + torch.eye(100)
        self.register_buffer("adjacency", adjacency / adjacency.sum(1, keepdim=True))

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of each node."""
        return self.adjacency @ self.second(torch.relu(self.adjacency @ self.first(x)))


def mlp(*widths: int, activation: type[nn.Module] = nn.Tanh) -> nn.Module:
    """Return a multilayer perceptron."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


def lenet() -> nn.Module:
    """Return LeNet for images of 28 by 28 points."""
    first = [nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*first, *second, mlp(400, 120, 84, 10, activation=nn.ReLU))


def small_cnn() -> nn.Module:
    """Return a convolutional net for sequences of 128 numbers."""
    layers = [nn.Conv1d(1, 16, 5), nn.ReLU(), nn.Conv1d(16, 32, 5), nn.ReLU()]
    return nn.Sequential(*layers, nn.MaxPool1d(4), nn.Flatten(), nn.Linear(960, 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A network, its data and its batch sizes."""

    create: Callable[[], nn.Module]
    shape: tuple[int, ...]
    num_outputs: int
    sizes: tuple[int, ...]
    classifies: bool = False
    momentum: bool = False


CASES = {
    "mlp-4-32-16-4": Case(
        create=lambda: mlp(4, 32, 16, 4), shape=(4,), num_outputs=4, sizes=(32, 128, 256)
    ),
    "sb3-policy": Case(
        create=lambda: mlp(8, 64, 64, 2), shape=(8,), num_outputs=2, sizes=(64, 256)
    ),
    "neural-ode": Case(create=NeuralOde, shape=(2,), num_outputs=2, sizes=(32,)),
    "dormand-prince": Case(
        create=lambda: NeuralOde(DORMAND_PRINCE), shape=(2,), num_outputs=2, sizes=(32,)
    ),
    "mnist-784-128-10": Case(
        create=lambda: mlp(784, 128, 10, activation=nn.ReLU),
        shape=(784,),
        num_outputs=10,
        sizes=(32, 128),
        classifies=True,
        momentum=True,
    ),
    "lstm-8-32": Case(create=lambda: Recurrent(nn.LSTM), shape=(20, 8), num_outputs=1, sizes=(32,)),
    "gru-8-32": Case(create=lambda: Recurrent(nn.GRU), shape=(20, 8), num_outputs=1, sizes=(32,)),
    "lenet": Case(create=lenet, shape=(1, 28, 28), num_outputs=10, sizes=(64,), classifies=True),
    "cnn-1d": Case(create=small_cnn, shape=(1, 128), num_outputs=4, sizes=(32,), classifies=True),
    "gcn-100": Case(
        create=GraphConvolution, shape=(16,), num_outputs=7, sizes=(100,), classifies=True
    ),
}


def make_optimizer(case: Case, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of a case."""
    if case.momentum:
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return torch.optim.Adam(model.parameters(), lr=1e-3)


def measure(case: Case, size: int, args: argparse.Namespace, peak: float) -> dict[str, Any]:
    """Return the times and ratios of a case at a batch size."""
    torch.manual_seed(0)
    first = case.create()
    loss_fn: nn.Module = nn.CrossEntropyLoss() if case.classifies else nn.MSELoss()
    x_data = torch.randn(NUM_BATCHES * size, *case.shape)
    y_data = torch.randn(len(x_data), case.num_outputs)
    if case.classifies:
        y_data = y_data.argmax(1)
    x, y = x_data[:size].clone(), y_data[:size].clone()
    per_call = args.steps_per_call
    indices = torch.randint(0, len(x_data), (per_call, size))

    threads_before = torch.get_num_threads()
    all_threads = threads_before if args.threads is None else args.threads

    def loop(*, is_compiled: bool = False) -> Callable[[], None]:
        model = copy.deepcopy(first)
        optimizer = make_optimizer(case, model)
        if is_compiled:
            model.compile()

        def run() -> None:
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            optimizer.step()

        return run

    steps: dict[str, Any] = {}

    def fast(name: str, **options: Any) -> Any:
        model = copy.deepcopy(first)
        optimizer = make_optimizer(case, model)
        steps[name] = fast_step(model, loss_fn, optimizer, **options)
        return steps[name]

    torch.set_num_threads(all_threads)
    single = fast("generated", engine="generated")
    several = fast("several", engine="generated", steps_per_call=per_call)
    ways: dict[str, tuple[Callable[[], object], int]] = {
        "eager": (loop(), 1),
        "eager_threads": (loop(), 1),
        "generated": (lambda: single(x, y), 1),
        "several": (lambda: several.run(x_data, y_data, indices), per_call),
    }
    if args.inductor:
        compiled = fast("inductor", engine="inductor")
        ways["inductor"] = (lambda: compiled(x, y), 1)
    if args.torch_compile:
        ways["torch_compile"] = (loop(is_compiled=True), 1)
    if args.jax:
        import fast_step_jax

        found = fast_step_jax.ways(
            first, classifies=case.classifies, momentum=case.momentum, data=(x_data, y_data)
        )
        if found is not None:
            one_step, several_steps = found
            ways["jax"] = (one_step(x, y), 1)
            ways["jax_several"] = (lambda: several_steps(indices), per_call)
    threads = {name: 1 if name in ("eager", "torch_compile") else all_threads for name in ways}
    counts: dict[str, int] = {}
    for name, (run, _) in ways.items():
        torch.set_num_threads(threads[name])
        counts[name] = calls_of(run)
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(args.rounds):
        for name, (run, per) in ways.items():
            torch.set_num_threads(threads[name])
            start_ns = time.perf_counter_ns()
            for _ in range(counts[name]):
                run()
            elapsed_ns = time.perf_counter_ns() - start_ns
            samples[name].append(elapsed_ns / counts[name] / per)
    torch.set_num_threads(threads_before)
    bound_ns = count_flop(first, loss_fn, x, y) / peak
    least = {name: min(taken) for name, taken in samples.items()}
    usual = {name: statistics.median(taken) for name, taken in samples.items()}
    result: dict[str, Any] = {"bound_ns": bound_ns, "batch_size": size}
    for name in ways:
        result[name] = {"least_ns": least[name], "median_ns": usual[name]}
        if not name.startswith("eager"):
            for key, times in (("speedup", least), ("median_speedup", usual)):
                eager = min(times["eager"], times["eager_threads"])
                result[name][key] = eager / times[name]
            result[name]["share_of_peak"] = bound_ns / least[name]
        if name in steps:
            result[name]["compile_ns"] = steps[name].cost.compile_ns
    return result


def count_flop(model: nn.Module, loss_fn: nn.Module, x: Tensor, y: Tensor) -> int:
    """Return the operations of all products, forward and backward."""
    was_enabled = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False  # whose recurrent layers are not counted
    try:
        with FlopCounterMode(display=False) as counter:
            loss_fn(model(x), y).backward()
    finally:
        torch.backends.mkldnn.enabled = was_enabled
    return counter.get_total_flops()


def calls_of(run: Callable[[], object]) -> int:
    """Return the calls that a sample takes, after some that compile."""
    for _ in range(4):
        run()
    start_s = time.perf_counter()
    run()
    return max(1, round(SAMPLE_S / max(1e-7, time.perf_counter() - start_s)))


def measure_peak() -> float:
    """Return operations a nanosecond of one core, in a product of two large matrices."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    size = 768
    left, right = torch.randn(size, size), torch.randn(size, size)
    best_ns = 1e18
    for _ in range(20):
        start_ns = time.perf_counter_ns()
        torch.mm(left, right)
        best_ns = min(best_ns, time.perf_counter_ns() - start_ns)
    torch.set_num_threads(threads)
    return 2 * size**3 / best_ns


def main() -> None:
    """Measure the cases and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps-per-call", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, help="threads of eager's second way")
    parser.add_argument("--only", help="part of a network's name")
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--torch-compile", action="store_true")
    parser.add_argument("--jax", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    peak = measure_peak()
    results: dict[str, Any] = {}
    out = sys.stderr if args.json else sys.stdout
    print(f"one core: {peak:.0f} GFLOP/s; us a step: least (median)", file=out)
    for name, case in CASES.items():
        if args.only and args.only not in name:
            continue
        for size in case.sizes:
            found = measure(case, size, args, peak)
            results[f"{name} b{size}"] = found
            eager = min(found["eager"]["least_ns"], found["eager_threads"]["least_ns"])
            line = f"{name} b{size}: eager {eager / 1e3:.0f}, bound {found['bound_ns'] / 1e3:.1f}"
            for way, one in found.items():
                if isinstance(one, dict) and "speedup" in one:
                    line += f"; {way} {one['least_ns'] / 1e3:.1f} ({one['median_ns'] / 1e3:.1f})"
                    line += f" = {one['speedup']:.1f}x ({one['median_speedup']:.1f}x)"
            line += f"; {found['generated']['share_of_peak']:.0%} of peak"
            line += f"; compiled in {found['generated']['compile_ns'] / 1e9:.1f} s"
            print(line, file=out, flush=True)
    if args.json:
        machine = {"processor": cpu_name(), "torch": torch.__version__, "gflop_s_a_core": peak}
        machine |= {"python": platform.python_version(), "threads": torch.get_num_threads()}
        document = {"machine": machine, "steps_per_call": args.steps_per_call, "results": results}
        print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
