"""The networks of the benchmark: their sizes, worked out by hand, and what they return."""

from __future__ import annotations

import runpy
from itertools import pairwise
from typing import Any

import pytest
import torch

from breakeven.systems import script_path
from breakeven.systems.published import networks

NETWORKS: dict[str, Any] = runpy.run_path(str(script_path("shi2016.py")))["NETWORKS"]


def linear(*widths: int) -> int:
    return sum(a * b + b for a, b in pairwise(widths))


def conv(num_in: int, num_out: int, size: int) -> int:
    return num_in * num_out * size * size


# Weights without biases, and two per channel of a batch norm.
_RESNET_56 = (
    conv(3, 16, 3)
    + 18 * conv(16, 16, 3)
    + conv(16, 32, 3) + 17 * conv(32, 32, 3)
    + conv(32, 64, 3) + 17 * conv(64, 64, 3)
    + 2 * (19 * 16 + 18 * 32 + 18 * 64)
    + linear(64, 10)
)  # fmt: skip

PARAMETERS = {
    "FCN-S": linear(26_752, 2048, 2048, 2048, 26_752),  # 118 M
    # 62.4 M: 61.0 M of the original, and what its groups of 2 leave out.
    "AlexNet-S": conv(3, 96, 11) + 96 + conv(96, 256, 5) + 256 + conv(256, 384, 3) + 384
    + conv(384, 384, 3) + 384 + conv(384, 256, 3) + 256 + linear(9216, 4096, 4096, 1000),
    "ResNet-50": 25_557_032,  # 25.6 M, as torchvision has it
    "FCN-R": linear(784, 2048, 4096, 1024, 10),  # 14.2 M
    # The benchmark's own notes say 85,000.
    "AlexNet-R": conv(3, 32, 5) + 32 + conv(32, 32, 5) + 32 + conv(32, 64, 5) + 64
    + linear(576, 10),
    "ResNet-56": _RESNET_56,
    # Embedding, four gates with two biases each in two layers, softmax.
    "LSTM": 10_000 * 256 + 2 * (4 * 256 * (256 + 256) + 2 * 4 * 256) + linear(256, 10_000),
}  # fmt: skip


def test_sizes_worked_by_hand_are_those_of_the_papers() -> None:
    assert PARAMETERS["ResNet-56"] == 853_018  # He et al. give 0.85 M
    assert PARAMETERS["AlexNet-S"] == 62_378_344
    assert PARAMETERS["FCN-S"] == 117_997_696
    assert PARAMETERS["AlexNet-R"] == 85_098


def test_the_script_has_the_networks_and_batch_sizes_of_the_table() -> None:
    assert {name: network.batch_size for name, network in NETWORKS.items()} == networks()


@pytest.mark.parametrize("name", NETWORKS)
def test_number_of_parameters(name: str) -> None:
    with torch.device("meta"):
        model = NETWORKS[name].create()
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_batch_gives_scores_of_its_classes(name: str) -> None:
    network = NETWORKS[name]
    inputs, targets = network.create_batch(2)
    with torch.device("meta"):
        scores = network.create()(inputs.to("meta"))
    num_targets = 64 if name == "LSTM" else 2  # a target for each of 32 words
    assert targets.shape == (num_targets,)
    assert scores.shape == (num_targets, network.num_classes)
    assert 0 <= int(targets.min()) <= int(targets.max()) < network.num_classes


def test_the_next_word_is_the_target() -> None:
    words, targets = NETWORKS["LSTM"].create_batch(3)
    assert torch.equal(words[1:].flatten(), targets[:-3])


def test_resnet_56_has_56_layers_with_weights() -> None:
    with torch.device("meta"):
        model = NETWORKS["ResNet-56"].create()
    layers = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)]
    assert len(layers) == 56


def test_the_shortcut_of_resnet_56_adds_channels_of_zeros() -> None:
    block_type = type(NETWORKS["ResNet-56"].create()[2])
    block = block_type(16, 32, 2).eval()
    torch.nn.init.zeros_(block.second[1].weight)  # the branch beside it gives nothing
    x = torch.rand(1, 16, 4, 4)
    y = block(x)
    assert torch.equal(y[:, :16], x[:, :, ::2, ::2])
    assert not y[:, 16:].any()
