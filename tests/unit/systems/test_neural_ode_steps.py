"""Steps that differ from each other, as those of an adaptive solver do."""

from __future__ import annotations

import time

import pytest
import torch

from breakeven.capture import record_steps


def _num_products(counts: list[int], pauses: tuple[int, ...] = ()) -> int:
    """Record a step for each count, with so many products; return those of the typical one.

    The steps with a number in ``pauses``, from 0 on, are held up for a moment.
    """
    weight = torch.ones(4, 4, requires_grad=True)
    with record_steps() as recording:
        weight = weight.detach().cuda().requires_grad_()
        optimizer = torch.optim.SGD([weight], lr=1e-9)
        for number, count in enumerate(counts):
            x = torch.ones(1, 4, device="cuda")
            if number in pauses:
                time.sleep(0.002)
            for _ in range(count):
                x = x.cos()
            optimizer.zero_grad()
            (x @ weight).sum().backward()
            optimizer.step()
    return sum(op.name == "aten.cos.default" for op in recording.trace.ops)


@pytest.mark.parametrize(
    ("counts", "typical"),
    [
        ([9, 1, 5, 2, 4, 3], 3),  # of 1 to 5, the first step aside
        ([9, 5, 1, 3, 2, 4, 3], 3),
        ([9, 2, 2, 2, 7, 8], 2),  # most are alike
        ([9, 2, 6, 2, 6], 6),  # of equally frequent ones the latest
    ],
)
def test_typical_step_is_frequent_or_of_middle_length(counts: list[int], typical: int) -> None:
    assert _num_products(counts) == typical


def test_pauses_of_the_machine_make_no_step_longer() -> None:
    counts = [9, 5, 1, 3, 2, 4, 3]
    assert _num_products(counts, pauses=(3, 4)) == 3
