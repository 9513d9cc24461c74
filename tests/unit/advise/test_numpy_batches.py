"""Batches that NumPy makes: what the script holds, and the way from there to the copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from breakeven.advise.numpy_batch import NumpyBatch, numpy_batch
from breakeven.advise.rule import RuleInput
from breakeven.capture import trace_step
from breakeven.trace import Copy, HostArray, HostWork, Op, Phase, RunFacts
from factories.cases import made_up_case, marked, rule_of
from factories.steps import at, op

IMAGES = HostArray(name="images", dtype="uint8", shape=(1000, 3, 32, 32))
LABELS = HostArray(name="labels", dtype="int64", shape=(1000,))
BATCH_BYTES = 4 * 64 * 3 * 32 * 32
WORK = HostWork(kind="script", duration_ns=1_600_000, phase=Phase.FORWARD)


def case(source: str, num_bytes: int = BATCH_BYTES, **changed: Any) -> RuleInput:
    (line,) = marked(source, "# copied")
    copy = Copy(
        source="cpu", destination="cuda:0", num_bytes=num_bytes, dtype="float32", storage=1,
        location=at(line),
    )  # fmt: skip
    facts = RunFacts(arrays=(IMAGES, LABELS))
    return made_up_case(WORK, copy, op(100), source=source, facts=facts, batch_size=64, **changed)


def made(source: str, num_bytes: int = BATCH_BYTES) -> NumpyBatch | None:
    return numpy_batch(case(source, num_bytes), 1)


PLAIN = """
    for step in range(10):
        i = rng.integers(0, 1000, 64)
        x = (images[i].astype(np.float32) / 255 - mean) / std  # cast
        x = torch.from_numpy(x).cuda()  # copied
"""
IN_PLACE = """
    for step in range(10):
        x = images[i].astype("float32")  # cast
        x -= mean
        x /= std
        x *= 2
        x, y = torch.tensor(x).to(device), torch.tensor(labels[i]).to(device)  # copied
"""
OF_AN_ATTRIBUTE = """
    class Photos:
        def next(self, start, size):
            pixels = self.images[start : start + size]
            scaled = np.asarray(pixels, dtype=np.float32)  # cast
            x = np.ascontiguousarray((scaled / 255 - 0.5).transpose(0, 3, 1, 2) / 0.25)
            return torch.from_numpy(x).cuda()  # copied
"""


@pytest.mark.parametrize("source", [PLAIN, IN_PLACE, OF_AN_ATTRIBUTE])
def test_way_from_the_array_to_the_copy(source: str) -> None:
    found = made(source)
    (cast,) = marked(source, "# cast")
    assert found is not None
    assert found.array == IMAGES
    assert found.cast is not None
    assert (found.cast.line, found.num_passes, found.prepared) == (cast, 3, (0,))


def test_many_assignments_of_one_name_are_followed_once_each() -> None:
    steps = "".join(f"    x = x / {number}\n" for number in range(2, 11))
    found = made(
        "for step in range(10):\n    x = images[i]\n"
        f"{steps}    x = torch.from_numpy(x).cuda()  # copied"
    )
    assert found is not None
    assert found.num_passes == 9


@pytest.mark.parametrize(
    "source",
    [
        "x = torch.from_numpy(crop(images[i]) / 255).cuda()  # copied",
        "x = torch.from_numpy(np.random.permutation(images[i])).cuda()  # copied",
        "x = torch.from_numpy(others[i] / 255).cuda()  # copied",
        "x = make().cuda()  # copied",
        "def load(i):\n    return images[i] / 255\nx = torch.tensor(load(0)).cuda()  # copied",
        "x = torch.from_numpy(x).cuda()  # copied",
    ],
)
def test_other_ways_are_not_followed(source: str) -> None:
    assert made(source) is None


def test_batch_has_whole_rows_of_the_array_and_is_a_part_of_it() -> None:
    source = "x = torch.from_numpy(images[i] / 255).cuda()  # copied"
    assert made(source, BATCH_BYTES) is not None
    assert made(source, BATCH_BYTES + 4) is None
    assert made(source, 4 * 3 * 32 * 32 * 501) is None


def test_wide_copy_of_numpy_is_told_at_the_cast() -> None:
    (one,) = rule_of("COPY005").detect(case(PLAIN))
    (cast,) = marked(PLAIN, "# cast")
    assert one.location == at(cast)
    assert one.edit is not None
    (work,) = one.edit.replaced[0]
    copy, *converted = one.edit.replaced[1]
    # Of each number: collecting moves 2 bytes, casting 5, and three passes 8 each.
    assert isinstance(work, HostWork)
    assert work.duration_ns == round(1_600_000 * 2 / 31)
    assert isinstance(copy, Copy)
    assert (copy.num_bytes, copy.dtype) == (BATCH_BYTES // 4, "uint8")
    names = [o.name for o in converted if isinstance(o, Op)]
    assert names == ["aten._to_copy.default", *["aten.mul.Tensor"] * 3]


def test_array_that_fits_is_told_at_the_copy() -> None:
    (one,) = rule_of("COPY004").detect(case(PLAIN))
    (line,) = marked(PLAIN, "# copied")
    assert one.location == at(line)
    assert one.edit is not None
    assert one.edit.replaced[0] == ()
    chosen, *converted = one.edit.replaced[1]
    assert isinstance(chosen, Op)
    assert chosen.name == "aten.index_select.default"
    assert len(converted) == 4
    assert "3.07 MB" in one.evidence


def test_arrays_that_user_code_can_name_are_facts() -> None:
    class Photos:
        def __init__(self) -> None:
            self.pixels = np.zeros((100, 32, 32), np.uint8)
            self.mean = np.zeros(3)

    photos = Photos()
    tables = {"prices": np.zeros((200, 64)), "names": ["a"]}
    indices = np.zeros(20_000, np.int64)
    model = nn.Linear(64, 2)
    optimizer = torch.optim.SGD(model.parameters())

    def step() -> None:
        x = torch.from_numpy(tables["prices"][:8].astype(np.float32)).cuda()
        model.cuda()(x).sum().backward()
        optimizer.step()
        assert len(indices) > len(photos.pixels)

    arrays = {array.name: array for array in trace_step(step).trace.facts.arrays}
    assert arrays["indices"] == HostArray(name="indices", dtype="int64", shape=(20_000,))
    assert arrays["pixels"].num_bytes == 100 * 32 * 32
    assert arrays["prices"].dtype == "float64"
    assert "mean" not in arrays
