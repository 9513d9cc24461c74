"""The fit of the error that similar predictions share."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from breakeven.report import Unpredictable
from breakeven.trace import StepTrace
from breakeven.validate import read_table
from breakeven.validate.traced_rows import TracedRows
from factories.accuracy import prediction, write_table
from factories.steps import op
from lab.ratios import LEVEL, pairs_by_source, quantile


def trace(*names: str) -> StepTrace:
    return StepTrace(events=tuple(op(1.0, name=name) for name in names))


def test_a_pair_has_the_error_of_its_ratio_in_half_widths_of_independent_ones(
    tmp_path: Path,
) -> None:
    table = [{"value_ms": "1"}, {"value_ms": "2"}, {"source": "other"}, {"value_ms": "3"}]
    rows = read_table(write_table(tmp_path / "steps.csv", *table))
    steps = (trace("mm", "relu"), trace("mm"), trace("mm"), trace("mm"))
    absent = Unpredictable(code="no-trace", reason="none")
    outcomes = dict(enumerate((prediction(1), prediction(1), prediction(1), absent)))
    found = pairs_by_source(TracedRows(rows=rows, steps=steps), outcomes)
    ((pair,),) = found.values()
    assert (pair.common, pair.gap) == (0.5, 0)
    assert pair.used == pytest.approx(1 / math.sqrt(2))
    assert pair.is_similar
    assert not pair._replace(common=0.49).is_similar
    assert not pair._replace(gap=math.log(2.1)).is_similar


def test_each_source_counts_alike() -> None:
    rng = np.random.default_rng(0)
    small, large = rng.uniform(0, 1, 2000).tolist(), rng.uniform(1, 2, 200).tolist()
    assert quantile({"one": small}) == pytest.approx(LEVEL, abs=0.02)
    # Half of the weight is above 1: the quantile lies in the upper source.
    assert quantile({"one": small, "two": large}) == pytest.approx(2 * LEVEL, abs=0.03)
