"""What the steps of five known networks should take, for docs/normal.md.

``python benchmarks/normal_table.py -o FILE.csv`` predicts each on twenty GPUs and three kinds of
machines with the reference CPU, by the calibration that ships; `docs/generate.py` shows the
result. It needs torchvision and transformers. Times are in milliseconds.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn
from torch.distributions import Categorical

from breakeven.calibrate import host_called
from breakeven.cost import reference_host
from breakeven.device import find_device
from breakeven.errors import BreakevenError
from breakeven.simulate import build_program, predict_steps
from breakeven.trace import Attention, NumberFormat, StepCase, TimedPhase
from breakeven.units import NS_PER_MS
from breakeven.workloads import trace_cases

GPUS = (
    "GTX 1080 Ti", "RTX 2060", "RTX 2080 Ti", "RTX 3060 12GB", "RTX 3070", "RTX 3080 10GB",
    "RTX 3090", "RTX 4060", "RTX 4070", "RTX 4080", "RTX 4090", "RTX 5090", "T4", "P100 PCIe 16GB",
    "V100 SXM2 16GB", "A10G", "L4", "L40S", "A100 SXM4 40GB", "H100 SXM5 80GB",
)  # fmt: skip
KINDS = ("desktop", "cloud", "colab")
_GPT2 = "llm:gpt2?d_model=768&n_heads=12&n_layers=12&vocab=50257&seq=1024"
_NANOGPT = "llm:gpt2?d_model=768&n_heads=12&n_layers=12&vocab=50304&seq=1024&drop=0.0&bias=0"


def ppo_update(batch_size: int) -> Callable[[], None]:
    """Return one minibatch of cleanrl's ``ppo.py`` on CartPole, without its reads of values.

    Source: github.com/vwxyzjn/cleanrl, cleanrl/ppo.py: two networks of 64 and 64, tanh, Adam.
    """

    def network(end: int) -> nn.Sequential:
        sizes = (nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, end))
        return nn.Sequential(*sizes)

    actor, critic = network(2), network(1)
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=2.5e-4, eps=1e-5)
    seen = torch.empty(batch_size, 4)
    actions = torch.zeros(batch_size, dtype=torch.long)
    old_logs, advantages, returns, values = torch.empty(4, batch_size)

    def update() -> None:
        policy = Categorical(logits=actor(seen), validate_args=False)
        ratio = (policy.log_prob(actions) - old_logs).exp()
        scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        clipped = -scaled * torch.clamp(ratio, 0.8, 1.2)
        new = critic(seen).view(-1)
        near = values + torch.clamp(new - values, -0.2, 0.2)
        value_loss = 0.5 * torch.max((new - returns) ** 2, (near - returns) ** 2).mean()
        policy_loss = torch.max(-scaled * ratio, clipped).mean()
        loss = policy_loss - 0.01 * policy.entropy().mean() + 0.5 * value_loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()

    return update


def _case(workload: str, number_format: NumberFormat, optimizer: str) -> StepCase:
    return StepCase(
        workload=workload, phase=TimedPhase.TRAIN, number_format=number_format,
        optimizer=optimizer, h2d="none", attention=Attention.SDPA,
    )  # fmt: skip


STEPS = {
    "ResNet-50, batch 64, torch's defaults, SGD": (
        _case("torchvision:resnet50", NumberFormat.TF32, "sgd"), 64
    ),
    "BERT-base, batch 16 of 128 tokens, fp32, AdamW": (
        _case("transformers:BertForMaskedLM?seq=128", NumberFormat.FP32, "adamw"), 16
    ),
    "GPT-2 124M, batch 4 of 1,024 tokens, fp32, AdamW": (
        _case(_GPT2, NumberFormat.FP32, "adamw"), 4
    ),
    "nanoGPT's defaults without compiling, one of 40 micro-batches of 12, fp16 autocast, AdamW": (
        _case(_NANOGPT, NumberFormat.AMP_FP16, "adamw-fused"), 12
    ),
    "cleanrl's PPO on CartPole, minibatch 128, Adam": (
        _case("benchmarks/normal_table.py:ppo_update", NumberFormat.FP32, "none"), 128
    ),
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Predict the steps and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", metavar="FILE.csv", type=Path, required=True)
    args = parser.parse_args(argv)
    traces = trace_cases(case for case, _ in STEPS.values())
    devices = [find_device(name) for name in GPUS]
    rows: list[tuple[object, ...]] = []
    for title, (case, batch_size) in STEPS.items():
        trace = traces[case]
        if isinstance(trace, BreakevenError):
            raise trace
        program = build_program(trace.at(batch_size))
        for kind in KINDS:
            for found in predict_steps(program, devices, host_called(kind, reference_host())):
                step = found.estimate
                times = (step.value_ns, step.low_ns, step.high_ns)
                shown = [f"{time_ns / NS_PER_MS:.4g}" for time_ns in times]
                rows.append((title, found.device.name, kind, *shown, int(found.fits)))
    with args.output.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("step", "gpu", "host", "ms", "low_ms", "high_ms", "fits"))
        writer.writerows(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
