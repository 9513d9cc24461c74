"""What predicts the rows of a table, and what listens meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from breakeven.validate.table_row import TableRow
from breakeven.verdict import RowPrediction, Unpredictable


class Predictor(Protocol):
    """Predicts rows of tables, from one calibration or from one per fold."""

    def predict(
        self, rows: Sequence[TableRow], *, teaching: Sequence[TableRow] = ()
    ) -> Sequence[RowPrediction | Unpredictable]:
        """Return one outcome per row, in the order of the rows.

        Args:
            rows: Rows whose devices are in the catalogue; their workloads may be unknown.
            teaching: Further such rows, which may be learned from and are not predicted.
        """
        ...


class Progress(Protocol):
    """Receives the stages of a validation; the command line draws them."""

    def begin(self, stage: str, expected_s: float | None = None) -> None:
        """Start a stage, such as "predicting 892 rows"."""
        ...

    def detail(self, text: str) -> None:
        """Say what happens within the stage, such as "without A100"."""
        ...

    def end(self) -> None:
        """End the last stage."""
        ...


class SilentProgress:
    """Tells nothing."""

    def begin(self, stage: str, expected_s: float | None = None) -> None:
        """Ignore the stage."""

    def detail(self, text: str) -> None:
        """Ignore the detail."""

    def end(self) -> None:
        """Ignore the end."""
