"""Whether predictions tell what compiling a step changes: pairs of rows, compiled and eager."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from breakeven.verdict.accuracy import RowResult

_EAGER = "none"
# A predicted ratio this close to the measured one serves to decide.
CLOSE_FRACTION = 0.15


class CompiledPairs(msgspec.Struct, frozen=True, kw_only=True):
    """Compiled over eager times of the same step on the same device, predicted and measured.

    Args:
        mode: Mode of ``torch.compile``.
        num_pairs: Pairs of which both rows are predicted.
        num_pairs_unpredicted: Pairs of which a row has no prediction.
        close_fraction: Share of ``num_pairs`` whose predicted ratio is within 15 % of the measured
            one; null where there are none, as the others are.
        right_side_fraction: Share on the same side of 1 as measured.
        median_error_fraction: Median of abs(predicted ratio / measured ratio - 1).
    """

    mode: str
    num_pairs: int
    num_pairs_unpredicted: int
    close_fraction: float | None = None
    right_side_fraction: float | None = None
    median_error_fraction: float | None = None


def compare_compiled(rows: Sequence[RowResult]) -> tuple[CompiledPairs, ...]:
    """Return one figure for each mode in which some step was measured that was also measured eager.

    A step that was measured more than once eager is paired with the first of these rows.
    """
    eager: dict[tuple[object, ...], RowResult] = {}
    compiled: defaultdict[str, list[RowResult]] = defaultdict(list)
    for row in rows:
        if row.compile == _EAGER:
            eager.setdefault(_step(row), row)
        else:
            compiled[row.compile].append(row)
    found: list[CompiledPairs] = []
    for mode, members in sorted(compiled.items()):
        pairs = [(row, eager[_step(row)]) for row in members if _step(row) in eager]
        if pairs:
            found.append(_figures(mode, pairs))
    return tuple(found)


def _step(row: RowResult) -> tuple[object, ...]:
    """Return what two rows share that differ in compilation alone."""
    return (
        row.source, row.workload, row.device, row.num_devices, row.precision, row.batch_size,
        row.phase, row.optimizer, row.h2d, row.host, row.framework, row.memory_format,
        row.attention,
    )  # fmt: skip


def _figures(mode: str, pairs: Sequence[tuple[RowResult, RowResult]]) -> CompiledPairs:
    predicted: list[float] = []
    measured: list[float] = []
    for row, other in pairs:
        if row.prediction is None or other.prediction is None:
            continue
        predicted.append(row.prediction.estimate.value_ns / other.prediction.estimate.value_ns)
        measured.append(row.value_ns / other.value_ns)
    counts = {"num_pairs": len(predicted), "num_pairs_unpredicted": len(pairs) - len(predicted)}
    if not predicted:
        return CompiledPairs(mode=mode, **counts)
    ratios, truth = np.array(predicted), np.array(measured)
    errors = np.abs(ratios / truth - 1.0)
    return CompiledPairs(
        mode=mode,
        **counts,
        close_fraction=float(np.mean(errors <= CLOSE_FRACTION)),
        right_side_fraction=sum(
            (r < 1.0) == (t < 1.0) for r, t in zip(predicted, measured, strict=True)
        )
        / len(predicted),
        median_error_fraction=float(np.median(errors)),
    )
