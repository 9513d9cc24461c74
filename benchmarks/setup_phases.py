"""How much longer a script prepares itself when it is recorded: ten phases before a first step.

    python benchmarks/setup_phases.py

Each phase runs in this process, in turns plainly and recorded, and the processor time of the
quickest of several runs counts. Those named ``... after .cuda()`` work while a model is on the GPU.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from time import process_time

import numpy as np
import torch
import torch._dynamo  # every optimizer needs it: importing it is no part of a phase
from torch import nn

from breakeven.capture import record_steps


def generate_samples() -> None:
    samples = []
    for _ in range(40_000):
        x = torch.rand(10)
        samples.append(torch.cat([x.sin(), x.cos()]) * 2)
    torch.stack(samples)


def simulate_in_python() -> None:
    state = 1.0
    for step in range(3_000_000):
        state = 3.9 * state * (1 - state) if step % 7 else 0.5
    torch.tensor(state)


def tokenise() -> None:
    text = "the quick brown fox jumps over the lazy dog " * 60_000
    words = re.findall(r"\w+", text)
    numbers = {word: number for number, word in enumerate(Counter(words))}
    torch.tensor([numbers[word] for word in words])


def prepare_with_numpy() -> None:
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 255, (10_000, 3, 32, 32), dtype=np.uint8)
    torch.from_numpy((pictures.astype(np.float32) / 255 - 0.5) / 0.25)


def collate_all() -> None:
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 255, (20_000, 28, 28), dtype=np.uint8)
    loader = torch.utils.data.DataLoader(
        [(torch.from_numpy(picture).float().div(255), 1) for picture in pictures], 20_000
    )
    next(iter(loader))


def collate_all_beside_a_model() -> None:
    nn.Linear(10, 10).cuda()
    collate_all()


def build_model() -> nn.Module:
    return nn.Transformer(384, 8, 6, 6, 2048, batch_first=True)


def build_and_move_model() -> None:
    build_model().cuda()


def load_checkpoint() -> None:
    file = io.BytesIO()
    torch.save({str(number): torch.zeros(200, 200) for number in range(600)}, file)
    file.seek(0)
    torch.load(file)


def normalise_on_the_device() -> None:
    x = torch.randn(6_000, 3_000).cuda()
    ((x - x.mean(0)) / x.std(0)).clamp_(-3, 3)


def act_before_learning() -> None:
    policy = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 4)).cuda()
    for _ in range(5_000):
        with torch.no_grad():
            policy(torch.randn(1, 8).cuda()).argmax().item()


_PHASES = (
    generate_samples, simulate_in_python, tokenise, prepare_with_numpy, collate_all,
    collate_all_beside_a_model, build_model, build_and_move_model, load_checkpoint,
    normalise_on_the_device,
)  # fmt: skip
# Not a phase that the target names: each of its calls works on the device.
_BEYOND = (act_before_learning,)


def main(argv: Sequence[str] | None = None) -> int:
    """Print processor times and their ratios."""
    phases = {phase.__name__: phase for phase in (*_PHASES, *_BEYOND)}
    parser = argparse.ArgumentParser(description="Time what precedes a first step.")
    parser.add_argument("--only", choices=phases, help="one phase")
    parser.add_argument("--runs", type=int, default=3, help="of each (3)")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    print(f"{'phase':30} {'plain':>9} {'recorded':>9} {'ratio':>6}")
    for phase in [phases[args.only]] if args.only else phases.values():
        plain, recorded = [], []
        for _ in range(args.runs):
            plain.append(_timed(_on_cpu(phase)))
            recorded.append(_timed(_recorded(phase)))
        ratio = min(recorded) / min(plain)
        print(
            f"{phase.__name__:30} {min(plain) * 1e3:6.1f} ms {min(recorded) * 1e3:6.1f} ms "
            f"{ratio:6.2f}"
        )
    return 0


def _on_cpu(phase: Callable[[], object]) -> Callable[[], object]:
    def run() -> None:
        original = torch.Tensor.cuda, nn.Module.cuda
        torch.Tensor.cuda = nn.Module.cuda = lambda thing, *_: thing  # type: ignore[method-assign]
        try:
            phase()
        finally:
            torch.Tensor.cuda, nn.Module.cuda = original  # type: ignore[method-assign]

    return run


def _recorded(phase: Callable[[], object]) -> Callable[[], object]:
    def run() -> None:
        with record_steps():
            phase()

    return run


def _timed(function: Callable[[], object]) -> float:
    begun_s = process_time()
    function()
    return process_time() - begun_s


if __name__ == "__main__":
    sys.exit(main())
