"""What is allowed to differ, by class and format."""

from __future__ import annotations

import pytest

from breakeven.verdict import Numerics, runs_tolerance
from faststep.tolerance import scale_of, step_tolerance


@pytest.mark.parametrize(
    ("numerics", "dtypes", "loss", "tensor"),
    [
        (Numerics.REORDERED, ["float32"], 2.0**-15, 2.0**-12),
        (Numerics.REORDERED, ["float64"], 2.0**-44, 2.0**-41),
        (Numerics.REORDERED, ["bfloat16"], 2.0**-9, 2.0**-6),
        (Numerics.REORDERED, ["float16"], 2.0**-12, 2.0**-9),
        (Numerics.REORDERED, ["float32", "bfloat16"], 2.0**-9, 2.0**-6),
        (Numerics.REORDERED, ["int64"], 2.0**-15, 2.0**-12),
        (Numerics.LOWER_PRECISION, ["float32"], 2.0**-5, 2.0**-2),
    ],
)
def test_the_coarsest_format_of_two_runs_decides(
    numerics: Numerics, dtypes: list[str], loss: float, tensor: float
) -> None:
    found = runs_tolerance(numerics, *dtypes)
    assert found.loss == pytest.approx(loss)
    assert found.tensor == pytest.approx(tensor)


@pytest.mark.parametrize(
    ("dtypes", "loss", "tensor"),
    [
        (["float64"], 1e-9, 1e-8),
        (["float32", "float64"], 1e-4, 1e-3),
        (["float32", "bfloat16"], 3e-2, 3e-1),
        ([], 1e-4, 1e-3),
    ],
)
def test_the_coarsest_format_of_a_step_decides(
    dtypes: list[str], loss: float, tensor: float
) -> None:
    found = step_tolerance(dtypes)
    assert found.loss == pytest.approx(loss)
    assert found.tensor == pytest.approx(tensor)


def test_what_is_small_beside_the_whole_is_judged_by_a_thousandth_of_that() -> None:
    assert scale_of(2.0, 10.0) == 2.0
    assert scale_of(0.0, 10.0) == 0.01
