"""Data sets of images: MNIST's and CIFAR's files, and folders of pictures."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from public_data._registry import kind

MNIST_SIZE = 28
CIFAR_CHANNELS, CIFAR_SIZE = 3, 32
NUM_CIFAR_BATCHES = 5


@kind
def mnist(to: Path, *, num_train: int = 4096, num_test: int = 1024) -> None:
    """Write the four idx files of MNIST, FashionMNIST or KMNIST to a folder."""
    to.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for part, count in (("train", num_train), ("t10k", num_test)):
        images = random.integers(0, 256, (count, MNIST_SIZE, MNIST_SIZE), np.uint8)
        head = struct.pack(">IIII", 0x803, count, MNIST_SIZE, MNIST_SIZE)
        (to / f"{part}-images-idx3-ubyte").write_bytes(head + images.tobytes())
        labels = random.integers(0, 10, count, np.uint8)
        head = struct.pack(">II", 0x801, count)
        (to / f"{part}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())


@kind
def cifar10(to: Path, *, num_per_batch: int = 1000) -> None:
    """Write the pickles of CIFAR-10 to a folder named cifar-10-batches-py."""
    to.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    names = [f"data_batch_{number}" for number in range(1, NUM_CIFAR_BATCHES + 1)]
    for name in (*names, "test_batch"):
        labels = random.integers(0, 10, num_per_batch).tolist()
        batch = {"data": cifar_pixels(random, num_per_batch), "labels": labels}
        (to / name).write_bytes(pickle.dumps(batch))
    meta = {"label_names": [f"class{number}" for number in range(10)]}
    (to / "batches.meta").write_bytes(pickle.dumps(meta))


@kind
def cifar100(to: Path, *, num_train: int = 5000, num_test: int = 1000) -> None:
    """Write the pickles of CIFAR-100 to a folder named cifar-100-python."""
    to.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for name, count in (("train", num_train), ("test", num_test)):
        batch = {
            "data": cifar_pixels(random, count),
            "fine_labels": random.integers(0, 100, count).tolist(),
            "coarse_labels": random.integers(0, 20, count).tolist(),
        }
        (to / name).write_bytes(pickle.dumps(batch))
    meta = {"fine_label_names": [f"class{number}" for number in range(100)]}
    (to / "meta").write_bytes(pickle.dumps(meta))


def cifar_pixels(random: np.random.Generator, count: int) -> np.ndarray:
    """Return random images, each one row: all of red, then green, then blue."""
    return random.integers(0, 256, (count, CIFAR_CHANNELS * CIFAR_SIZE**2), np.uint8)


@kind
def images(
    to: Path,
    *,
    count: int = 64,
    size: Sequence[int] = (256, 256),
    classes: Sequence[str] = (),
    suffix: str = "jpg",
    names: str = "{:06d}",
) -> None:
    """Write pictures to a folder, as many to each of its subfolders if there are classes.

    Args:
        to: The folder.
        count: Pictures in each.
        size: Width and height.
        classes: Names of the subfolders.
        suffix: The format.
        names: The name of a picture, without the suffix, by its number.
    """
    from PIL import Image

    random = np.random.default_rng(0)
    width, height = size
    for folder in [to / name for name in classes] or [to]:
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            # Blocks of 8 x 8 pixels, so that files are as large as those of photographs.
            blocks = random.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
            pixels = blocks.repeat(8, 0).repeat(8, 1)[:height, :width]
            Image.fromarray(pixels).save(folder / f"{names.format(number)}.{suffix}")
