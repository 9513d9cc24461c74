"""What a report says of a compiled step."""

from __future__ import annotations

import pytest

from breakeven.simulate import CompiledStep, CompileMode, Edit
from breakeven.units import NS_PER_S
from breakeven.verdict import compiled_steps
from factories.networks import prediction

STEP = CompiledStep(
    edit=Edit(),
    mode=CompileMode.DEFAULT,
    num_graphs=2,
    num_ops=10,
    num_kernels=5,
    breaks=(),
    compile_ns=6 * NS_PER_S,
)


@pytest.mark.parametrize(
    ("compiled_s", "num_steps"),
    [
        (0.5, 12),
        # The workers of a loader take all of it, and rounding alone differs.
        (1.0 - 1e-12, None),
        (1.0, None),
        (1.5, None),
    ],
)
def test_a_compilation_is_paid_for_by_what_it_saves(
    compiled_s: float, num_steps: int | None
) -> None:
    found = compiled_steps(
        STEP,
        (prediction("A GPU", 1.0),),
        (prediction("A GPU", compiled_s),),
        is_asked_for_by_script=False,
    )
    (result,) = found.results
    assert result.pays_after_steps == num_steps
    assert result.speedup == pytest.approx(1 / compiled_s)
