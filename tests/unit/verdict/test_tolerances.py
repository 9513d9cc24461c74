"""The one table of tolerances: what is allowed, by what is compared, class and format."""

from __future__ import annotations

import pytest

from breakeven.verdict import Compared, Numerics, scale_of, tolerance_of


@pytest.mark.parametrize(
    ("compared", "numerics", "dtypes", "loss", "tensor"),
    [
        (Compared.RUNS, Numerics.REORDERED, ["float32"], 2.0**-15, 2.0**-12),
        (Compared.RUNS, Numerics.REORDERED, ["float64"], 2.0**-44, 2.0**-41),
        (Compared.RUNS, Numerics.REORDERED, ["bfloat16"], 2.0**-9, 2.0**-6),
        (Compared.RUNS, Numerics.REORDERED, ["float16"], 2.0**-12, 2.0**-9),
        (Compared.RUNS, Numerics.REORDERED, ["float32", "bfloat16"], 2.0**-9, 2.0**-6),
        (Compared.RUNS, Numerics.REORDERED, ["int64"], 2.0**-15, 2.0**-12),
        (Compared.RUNS, Numerics.LOWER_PRECISION, ["float32"], 2.0**-5, 2.0**-2),
        (Compared.STEP, Numerics.REORDERED, ["float64"], 1e-9, 1e-8),
        (Compared.STEP, Numerics.REORDERED, ["float32", "float64"], 1e-4, 1e-3),
        (Compared.STEP, Numerics.REORDERED, ["float32", "bfloat16"], 3e-2, 3e-1),
    ],
)
def test_the_coarsest_format_decides(
    compared: Compared, numerics: Numerics, dtypes: list[str], loss: float, tensor: float
) -> None:
    found = tolerance_of(compared, numerics, *dtypes)
    assert found.loss == pytest.approx(loss)
    assert found.tensor == pytest.approx(tensor)


def test_what_is_small_beside_the_whole_is_judged_by_a_thousandth_of_that() -> None:
    assert scale_of(2.0, 10.0) == 2.0
    assert scale_of(0.0, 10.0) == 0.01
