"""What predicts the rows of a table, from calibrations that keep to a protocol."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Protocol

import msgspec

from breakeven.cost import (
    load_efficiencies,
    load_step_effects,
)
from breakeven.progress import Progress
from breakeven.simulate import load_multi_gpu_table
from breakeven.validate.table_row import MeasuredRow
from breakeven.validate.traced_rows import Calibration, RowOutcome, TracedRows
from breakeven.verdict import RowPrediction, Unpredictable


class Predictor(Protocol):
    """Predicts rows of tables, from one calibration or from one per fold."""

    def predict(
        self, rows: Sequence[MeasuredRow], *, training: Sequence[MeasuredRow] = ()
    ) -> Sequence[RowPrediction | Unpredictable]:
        """Return one outcome per row, in the order of the rows.

        Args:
            rows: Rows whose devices are in the catalogue; their workloads may be unknown.
            training: Further such rows, which may be learned from and are not predicted.
        """
        ...


def shipped_calibration() -> Calibration:
    """Return the calibration that ships with the package."""
    return Calibration(
        efficiencies=load_efficiencies(),
        effects=load_step_effects(),
        multi_gpu=load_multi_gpu_table(),
    )


class ShippedPredictor:
    """The calibration that ships; rows that it was made from are marked.

    Args:
        progress: Progress callback.
    """

    def __init__(self, *, progress: Progress) -> None:
        self._progress = progress

    def predict(
        self, rows: Sequence[MeasuredRow], *, training: Sequence[MeasuredRow] = ()
    ) -> Sequence[RowOutcome]:
        """Return one outcome per row; nothing is learned from ``training``."""
        steps = TracedRows.of(rows, progress=self._progress)
        calibration = shipped_calibration()
        seen = {*calibration.effects.calibrated_on, *calibration.multi_gpu.calibrated_on}
        return tuple(
            msgspec.structs.replace(outcome, is_calibrated_on=fingerprint(row) in seen)
            if isinstance(outcome, RowPrediction)
            else outcome
            for row, outcome in zip(rows, steps.predict(range(len(rows)), calibration), strict=True)
        )


# A family of models, each a stem of names: what differs is depth and width.
_FAMILY_STEMS = re.compile(r"[a-z]+(?:_resnet)?", re.IGNORECASE)
# timm names weights of one architecture by who trained them.
_TRAINERS = re.compile(r"^(?:gluon|tv|ssl|swsl|ig|tf|legacy|ens_adv)_")


def model_family_of(workload: str) -> str:
    """Return the model family of a workload: ``torchvision:resnet`` for all ResNets.

    Wide ResNets and ResNeXts are families of their own, by their names.
    """
    kind, _, rest = workload.partition(":")
    name = rest.partition("?")[0]
    if kind in ("llm", "mpt", "gpt2"):
        # All are GPT-2 with other numbers, and so is a model of transformers.
        return "transformers:GPT2"
    if kind == "transformers":
        # BertForQuestionAnswering, BertModel: up to the task.
        name = re.sub(r"(?:LMHead|For[A-Z]|Model|PreTrained).*", "", name)
        return f"{kind}:{name}"
    if kind == "timm":
        name = _TRAINERS.sub("", name)
    stem = _FAMILY_STEMS.match(name)
    return f"{kind}:{stem.group(0).rstrip('_') if stem else name}"


def fingerprint(row: MeasuredRow) -> str:
    """Return what tells a row from every other: its step, where it ran, and how long it took."""
    facts = (
        row.workload, row.device, row.num_devices, row.precision, row.batch_size, row.phase,
        row.optimizer, row.h2d, row.host, row.framework, f"{row.value_ns:.6g}",
    )  # fmt: skip
    return hashlib.sha256("\n".join(map(str, facts)).encode()).hexdigest()[:10]
