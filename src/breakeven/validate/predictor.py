"""What predicts the rows of a table, from calibrations that keep to a protocol."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import msgspec

from breakeven.calibrate import (
    MultiGpuRow,
    StepSample,
    fit_multi_gpu_costs,
    fit_step_effects,
)
from breakeven.cost import (
    STEP_EFFECTS_VERSION,
    DeviceEfficiency,
    EfficiencyTable,
    Spread,
    StepEffects,
    load_efficiencies,
    load_step_effects,
)
from breakeven.device import DeviceSpec, find_device
from breakeven.progress import Progress
from breakeven.simulate import load_multi_gpu_table, setup_of
from breakeven.validate.table_row import MeasuredRow
from breakeven.validate.traced_rows import Calibration, RowOutcome, TracedRows
from breakeven.verdict import LeaveOut, RowPrediction, Unpredictable


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


def predictor_for(protocol: LeaveOut, *, progress: Progress) -> Predictor:
    """Return what predicts rows with a calibration that keeps to ``protocol``."""
    if protocol is LeaveOut.NONE:
        return ShippedPredictor(progress=progress)
    return HeldOutPredictor(protocol, progress=progress)


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


class HeldOutPredictor:
    """One calibration per fold, made from the other rows of the table.

    Of a GPU that is left out, and of a source, the benchmarks of operators are left out too, also
    where they would decide the efficiencies of others. How wide intervals are is not learned anew.

    Args:
        protocol: What is left out together.
        progress: Progress callback.
        spread: Residual uncertainty; that which ships by default.
    """

    def __init__(
        self, protocol: LeaveOut, *, progress: Progress, spread: Spread | None = None
    ) -> None:
        self._protocol = protocol
        self._progress = progress
        self._spread = spread

    def predict(
        self, rows: Sequence[MeasuredRow], *, training: Sequence[MeasuredRow] = ()
    ) -> Sequence[RowOutcome]:
        """Return one outcome per row, learned from the other rows and from ``training``."""
        everything = (*rows, *training)
        steps = TracedRows.of(everything, progress=self._progress)
        spread = self._spread or load_step_effects().spread
        table = load_efficiencies()
        samples = steps.samples(table)
        outcomes: dict[int, RowOutcome] = {}
        for name, (others, left_out) in folds(everything, self._protocol).items():
            members = [position for position in left_out if position < len(rows)]
            if not members:
                continue
            self._progress.detail(f"without {name}")
            known = _without(table, name, self._protocol)
            calibration = Calibration(
                efficiencies=known,
                effects=_effects(
                    samples if known == table else steps.samples(known, others),
                    others,
                    provenance=f"all rows but those of {name}",
                    spread=spread,
                ),
                multi_gpu=load_multi_gpu_table(),
            )
            outcomes |= _predicted(calibration, steps, others, members)
        return tuple(outcomes[position] for position in range(len(rows)))


def _without(table: EfficiencyTable, name: str, protocol: LeaveOut) -> EfficiencyTable:
    """Return the benchmarks of operators that do not belong to a fold."""

    def is_left_out(entry: DeviceEfficiency) -> bool:
        if protocol is LeaveOut.GPU:
            return gpu_of(find_device(entry.device)) == name
        return protocol is LeaveOut.SOURCE and f"{name} " in entry.source

    devices = tuple(entry for entry in table.devices if not is_left_out(entry))
    return table if devices == table.devices else msgspec.structs.replace(table, devices=devices)


def _effects(
    samples: Mapping[int, StepSample], others: Sequence[int], *, provenance: str, spread: Spread
) -> StepEffects:
    known = [samples[position] for position in others if position in samples]
    if not known:
        return StepEffects(
            version=STEP_EFFECTS_VERSION, provenance=provenance, spread=spread, effects=()
        )
    return fit_step_effects(known, provenance=provenance, spread=spread)


def _predicted(
    calibration: Calibration, steps: TracedRows, others: Sequence[int], members: Sequence[int]
) -> dict[int, RowOutcome]:
    """Return the outcomes of ``members``, costs of several GPUs being learned from ``others``."""
    strategies = {
        position: setup_of(row.note, row.num_devices)[0].strategy
        for position in members
        if (row := steps.rows[position]).num_devices > 1
    }
    unfitted: dict[int, RowOutcome] = {}
    if strategies:
        shared = list(steps.shared_steps(others, calibration).values())
        trained = {row.setup.strategy for row in shared}
        unfitted = {
            position: Unpredictable(
                code="not-calibrated",
                reason=f"no row of the others was timed on one and on several GPUs by {strategy}",
            )
            for position, strategy in strategies.items()
            if strategy not in trained
        }
        calibration = _with_shared_steps(calibration, shared)
    predicted = [position for position in members if position not in unfitted]
    return unfitted | dict(zip(predicted, steps.predict(predicted, calibration), strict=True))


def _with_shared_steps(calibration: Calibration, shared: Sequence[MultiGpuRow]) -> Calibration:
    fitted = msgspec.structs.replace(
        fit_multi_gpu_costs(shared),
        provenance=calibration.effects.provenance,
        held_out=calibration.multi_gpu.held_out,
    )
    return replace(calibration, multi_gpu=fitted)


# Boards of one GPU that differ in memory size, form factor or cooling are one GPU: any of them
# would give the others away.
_BOARD_WORDS = re.compile(
    r"\b(?:\d+\s*gb|sxm\d?|pcie|nvl|max-q|laptop)\b|\(dgx[^)]*\)", re.IGNORECASE
)
# A family of models, each a stem of names: what differs is depth and width.
_FAMILY_STEMS = re.compile(r"[a-z]+(?:_resnet)?", re.IGNORECASE)
# timm names weights of one architecture by who trained them.
_TRAINERS = re.compile(r"^(?:gluon|tv|ssl|swsl|ig|tf|legacy|ens_adv)_")


def gpu_of(device: DeviceSpec) -> str:
    """Return the GPU of which ``device`` is a board: ``A100`` for all A100."""
    return " ".join(_BOARD_WORDS.sub(" ", device.name).split())


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


def fold_names(rows: Sequence[MeasuredRow], protocol: LeaveOut) -> tuple[str, ...]:
    """Return the fold of each row; the rows of a fold are left out together.

    Raises:
        ValueError: The protocol leaves nothing out.
    """
    if protocol is LeaveOut.GPU:
        return tuple(gpu_of(find_device(row.device)) for row in rows)
    if protocol is LeaveOut.MODEL:
        return tuple(model_family_of(row.workload) for row in rows)
    if protocol is LeaveOut.SOURCE:
        return tuple(row.source or "not given" for row in rows)
    raise ValueError(f"{protocol} has no folds")


def folds(
    rows: Sequence[MeasuredRow], protocol: LeaveOut
) -> Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return by fold which rows a calibration may learn from, and which it is to predict.

    Both are positions in ``rows``. No position is in both, and no GPU, or no model family, has
    rows in both.
    """
    names = fold_names(rows, protocol)
    members: defaultdict[str, list[int]] = defaultdict(list)
    for position, name in enumerate(names):
        members[name].append(position)
    return {
        name: (
            tuple(p for p, other in enumerate(names) if other != name),
            tuple(positions),
        )
        for name, positions in sorted(members.items())
    }


def fingerprint(row: MeasuredRow) -> str:
    """Return what tells a row from every other: its step, where it ran, and how long it took."""
    facts = (
        row.workload, row.device, row.num_devices, row.precision, row.batch_size, row.phase,
        row.optimizer, row.h2d, row.host, row.framework, f"{row.value_ns:.6g}",
    )  # fmt: skip
    return hashlib.sha256("\n".join(map(str, facts)).encode()).hexdigest()[:10]


# By the word in the column ``source``; other sources are named by their word alone.
_REPOSITORIES = {
    "ryujaehun": "https://github.com/ryujaehun/pytorch-gpu-benchmark",
    "timm": "https://github.com/huggingface/pytorch-image-models",
    "lambda": "https://github.com/lambdal/deeplearning-benchmark",
    "neusight": "https://github.com/sitar-lab/NeuSight",
    "jcjohnson": "https://github.com/jcjohnson/cnn-benchmarks",
}


def provenance_of(rows: Sequence[MeasuredRow], command: str) -> str:
    """Return how a file was made, and from what.

    Args:
        rows: The rows that were used.
        command: What makes it again, given their table.
    """
    counts = Counter(row.source or "not given" for row in rows)
    sources = "; ".join(
        f"{source}, {_REPOSITORIES[source]} ({count})"
        if source in _REPOSITORIES
        else f"{source} ({count})"
        for source, count in sorted(counts.items())
    )
    return f"Fitted by `{command}` to {len(rows)} measured steps of published tables: {sources}."
