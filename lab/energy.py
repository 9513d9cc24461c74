"""Fit the power of GPUs' boards to measured trainings, and leave each GPU and each workload out.

    python -m lab.energy FOLDER

FOLDER has ``summary_power_{a40,v100,rtx6000,p100}.csv`` of ml-energy/zeus (Apache-2.0,
examples/research_reproducibility/zeus_nsdi23/trace). Rows at the default power limit count. The
steps are simulated, so torchvision and transformers must be installed. Two things are not known:

- DeepSpeech2's recordings have many lengths; all samples are 12.3 s here, LibriSpeech's mean. Its
  trainer's 16-bit autocast agrees with the measured times.
- NCF waits for its loader, which cannot be recorded here: the measured time of its steps counts.
  The errors with the simulated one are printed too.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import nn

from breakeven.cost import StepCosts, era_of, load_efficiencies, load_step_effects, reference_host
from breakeven.device import find_device
from breakeven.errors import BreakevenError
from breakeven.money.energy import POWER_FIT, kernel_work, power_terms
from breakeven.simulate import build_program, predict_steps
from breakeven.trace import NumberFormat, StepCase, TimedPhase
from breakeven.workloads import trace_cases

DEVICES = {"a40": "A40", "v100": "V100-PCIE", "rtx6000": "Quadro RTX 6000", "p100": "P100"}
_HERE = str(Path(__file__).resolve())
# By data set: workload, optimizer, samples in an epoch.
WORKLOADS = {
    "cifar100": (f"{_HERE}:shufflenet", "adadelta-loop", 50_000),
    "imagenet": ("torchvision:resnet50", "adadelta-loop", 1_281_167),
    "librispeech": (f"{_HERE}:deep_speech", "adamw-loop", 281_241),
    "movielens-1m": (f"{_HERE}:neural_filtering", "adam-loop", 5 * 994_169),
    "squad": ("transformers:BertForQuestionAnswering?seq=384", "adamw-loop", 88_524),
    "sentiment140": (
        "transformers:BertForSequenceClassification?seq=64", "adamw-loop", 1_280_000
    ),
}  # fmt: skip
_FED_BY_HOST = "movielens-1m"
_ERA = era_of("torch 1.10")
# Reweighted least squares: smaller relative errors weigh alike.
_LEAST_ERROR = 0.02
_NUM_FITS = 300
Floats = NDArray[np.float64]


class WithLoss(nn.Module):
    """A network whose last input is the target."""

    def __init__(self, network: nn.Module, loss: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.network, self.loss = network, loss

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        return self.loss(self.network(*batch[:-1]), batch[-1])


def shufflenet(batch_size: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return ShuffleNetV2 1x for 32x32 images: its stem keeps the size."""
    images = torch.empty(batch_size, 3, 32, 32)
    return _shufflenet(), (images, torch.zeros(batch_size, dtype=torch.int64))


@cache
def _shufflenet() -> nn.Module:
    from breakeven.workloads.libraries import import_torchvision

    network: Any = import_torchvision().models.shufflenet_v2_x1_0(num_classes=100)  # pyright: ignore[reportOptionalMemberAccess]
    network.conv1[0].stride = (1, 1)
    network.maxpool = nn.Identity()
    return WithLoss(network, F.cross_entropy)


class NeuralFiltering(nn.Module):
    """NeuMF of MovieLens-1M: 32 factors and three layers (He et al., WWW 2017)."""

    def __init__(self) -> None:
        super().__init__()
        widths = ((6040, 32), (3706, 32), (6040, 128), (3706, 128))
        self.tables = nn.ModuleList(nn.Embedding(*width) for width in widths)
        layers = [(nn.Linear(width, width // 2), nn.ReLU()) for width in (256, 128, 64)]
        self.layers = nn.Sequential(*(part for pair in layers for part in pair))
        self.head = nn.Linear(64, 1)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        """Return one logit for each pair."""
        one, two, three, four = (
            table(key) for table, key in zip(self.tables, (user, item) * 2, strict=True)
        )
        deep = self.layers(torch.cat((three, four), -1))
        return self.head(torch.cat((one * two, deep), -1)).view(-1)


_filtering = cache(lambda: WithLoss(NeuralFiltering(), F.binary_cross_entropy_with_logits))


def neural_filtering(batch_size: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return NCF."""
    keys = (torch.zeros(batch_size, dtype=torch.int64) for _ in range(2))
    return _filtering(), (*keys, torch.empty(batch_size))


class DeepSpeech(nn.Module):
    """DeepSpeech2: two convolutions and five bidirectional LSTMs of 1,024."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
        )  # fmt: skip
        widths = (1312, 1024, 1024, 1024, 1024)
        self.layers = nn.ModuleList(nn.LSTM(width, 1024, bidirectional=True) for width in widths)
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for width in (*widths[1:], 1024))
        self.head = nn.Linear(1024, 29, bias=False)

    def forward(self, spectrum: torch.Tensor) -> torch.Tensor:
        """Return log-probabilities of letters, (time, batch, letters)."""
        x = self.convolutions(spectrum).flatten(1, 2).permute(2, 0, 1)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = layer(x)[0].unflatten(-1, (2, -1)).sum(2)
            x = norm(x.flatten(0, 1)).view(x.shape)
        return self.head(x).log_softmax(-1)


_speech = cache(lambda: WithLoss(DeepSpeech(), lambda output, _: output.mean()))


def deep_speech(batch_size: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return DeepSpeech2 on 12.3 s of speech."""
    return _speech(), (torch.empty(batch_size, 1, 161, 1230), torch.empty(batch_size))


def read_rows(folder: Path) -> list[dict[str, str]]:
    """Return the rows at the default power limit, with their device and its limit."""
    rows: list[dict[str, str]] = []
    for device in DEVICES:
        with (folder / f"summary_power_{device}.csv").open(encoding="utf-8", newline="") as lines:
            found = [{"device": device, **row} for row in csv.DictReader(lines)]
        limit = max(float(row["power_limit"]) for row in found)
        rows += [row for row in found if float(row["power_limit"]) == limit]
    return rows


def _case(row: dict[str, str]) -> StepCase:
    number_format = NumberFormat.TF32 if row["device"] == "a40" else NumberFormat.FP32
    if row["dataset"] == "librispeech":
        number_format = NumberFormat.AMP_FP16
    workload, optimizer, _ = WORKLOADS[row["dataset"]]
    return StepCase(
        workload=workload, phase=TimedPhase.TRAIN, number_format=number_format,
        optimizer="adam-loop" if row["optimizer"] == "adam" else optimizer,
        h2d="pageable", zeroes_gradients=True,
    )  # fmt: skip


def terms_of(rows: list[dict[str, str]]) -> tuple[Floats, Floats]:
    """Return the factors of the fit's shares: with NCF's measured steps, and all simulated."""
    traces = trace_cases(map(_case, rows))
    costs = StepCosts(
        efficiencies=load_efficiencies(), effects=load_step_effects(), era=_ERA, machine=""
    )
    terms: list[list[tuple[float, ...]]] = [[], []]
    for row in rows:
        trace = traces[_case(row)]
        if isinstance(trace, BreakevenError):
            raise trace
        size, device = int(row["batch_size"]), find_device(DEVICES[row["device"]])
        program = build_program(trace.at(size)).with_costs(costs)
        (step,) = predict_steps(program, [device], reference_host(_ERA))
        num_samples = WORKLOADS[row["dataset"]][2]
        measured_ns = float(row["time_per_epoch"]) * 1e9 * size / num_samples
        fed_ns = measured_ns if row["dataset"] == _FED_BY_HOST else 0.0
        (work,) = kernel_work(program, [device])
        for kept, least_ns in zip(terms, (fed_ns, 0.0), strict=True):
            step_ns = max(step.estimate.value_ns, least_ns)
            kept.append(power_terms(device, work.during(step_ns)))
    return np.array(terms[0]), np.array(terms[1])


def fit(terms: Floats, shares: Floats, weights: Floats) -> Floats:
    """Return the fit's four shares with the least mean relative error.

    Args:
        terms: Factors of the shares, (rows, 4).
        shares: Measured power over TDP.
        weights: Of the rows.
    """
    relative, now = terms / shares[:, None], weights.copy()
    found: Floats = np.zeros(terms.shape[1])
    for _ in range(_NUM_FITS):
        root = np.sqrt(now)
        found[:] = np.linalg.lstsq(relative * root[:, None], root, rcond=None)[0]
        now = weights / np.maximum(abs(relative @ found - 1), _LEAST_ERROR)
    for floor, other in ((0, 1), (1, 0)):
        if not terms[:, floor].any():  # no such board among the rows
            found[floor] = found[other]
    return found


def left_out(terms: Floats, shares: Floats, weights: Floats, groups: NDArray[Any]) -> Floats:
    """Return the power over TDP of each group by a fit to the others."""
    predicted = np.zeros(len(shares))
    for group in np.unique(groups):
        others = groups != group
        found = fit(terms[others], shares[others], weights[others])
        predicted[~others] = np.minimum(terms[~others] @ found, 1.0)
    return predicted


def _print_errors(title: str, errors: Floats, groups: NDArray[Any]) -> None:
    folds = {str(group): errors[groups == group] for group in np.unique(groups)}
    text = ", ".join(f"{name} {np.median(each):.1%}" for name, each in folds.items())
    print(f"{title}: median {np.median(errors):.1%}, mean {errors.mean():.1%}; {text}")


def main() -> None:
    """Fit, and print the errors and the coverage."""
    parser = argparse.ArgumentParser(description="Fit the power of GPUs' boards.")
    parser.add_argument("folder", type=Path, help="with the tables of power")
    rows = read_rows(parser.parse_args().folder)
    devices = np.array([row["device"] for row in rows])
    works = np.array([row["dataset"] for row in rows])
    tdp_watts = np.array([find_device(DEVICES[name]).tdp_watts for name in devices])
    shares = np.array([float(row["average_power"]) for row in rows]) / tdp_watts
    pairs = np.char.add(devices, works)
    weights = np.array([1.0 / np.count_nonzero(pairs == pair) for pair in pairs])
    fed, simulated = terms_of(rows)
    print(f"{len(rows)} rows; TDP alone: median {np.median(1 / shares - 1):.1%}")
    for title, terms in (("each GPU left out", fed), ("the same, all simulated", simulated)):
        predicted = left_out(terms, shares, weights, devices)
        _print_errors(title, abs(predicted / shares - 1), devices)
        _print_errors("  by workload", abs(predicted / shares - 1), works)
    three = devices != "p100"
    predicted = left_out(fed[three], shares[three], weights[three], devices[three])
    _print_errors("without the P100", abs(predicted / shares[three] - 1), devices[three])
    predicted = left_out(fed, shares, weights, works)
    _print_errors("each workload left out", abs(predicted / shares - 1), works)
    for name in DEVICES:  # the ends, too, by the other GPUs alone
        others = devices != name
        inner = left_out(fed[others], shares[others], weights[others], devices[others])
        low, high = np.quantile(np.log(shares[others] / inner), (0.05, 0.95))
        found = fit(fed[others], shares[others], weights[others])
        off = np.log(shares[~others] / np.minimum(fed[~others] @ found, 1.0))
        covered = np.mean((off > low) & (off < high))
        print(f"  interval {low:+.2f} {high:+.2f} holds {covered:.0%} of {name}")
    off = np.log(shares / left_out(fed, shares, weights, devices))
    low, high = np.quantile(off, (0.05, 0.95))
    names = ("stacked_floor", "floor", "working", "recurrent")
    values = dict(zip(names, fit(fed, shares, weights).round(3).tolist(), strict=True))
    print(
        replace(POWER_FIT, **values, log_low=round(float(low), 2), log_high=round(float(high), 2))
    )


if __name__ == "__main__":
    main()
