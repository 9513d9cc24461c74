"""Which rows a calibration must not see of a row that it predicts."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from breakeven.device import DeviceSpec, find_device
from breakeven.validate.table_row import TableRow
from breakeven.verdict import LeaveOut

# Boards of one GPU that differ in memory size, form factor or cooling are one GPU: any of them
# would give the others away.
_BOARD_WORDS = re.compile(
    r"\b(?:\d+\s*gb|sxm\d?|pcie|nvl|max-q|laptop)\b|\(dgx[^)]*\)", re.IGNORECASE
)
# A family of models, each a stem of names: what differs is depth and width.
_FAMILY_STEMS = re.compile(r"[a-z]+(?:_resnet)?", re.IGNORECASE)


def gpu_of(device: DeviceSpec) -> str:
    """Return the GPU of which ``device`` is a board: ``A100`` for all A100."""
    return " ".join(_BOARD_WORDS.sub(" ", device.name).split())


def model_family_of(workload: str) -> str:
    """Return the model family of a workload: ``torchvision:resnet`` for all ResNets.

    Wide ResNets and ResNeXts are families of their own, by their names.
    """
    kind, _, rest = workload.partition(":")
    name = rest.partition("?")[0]
    if kind == "transformers":
        # BertForQuestionAnswering, BertModel: up to the task.
        name = re.sub(r"(?:LMHead|For[A-Z]|Model|PreTrained).*", "", name)
        return f"{kind}:{name}"
    stem = _FAMILY_STEMS.match(name)
    return f"{kind}:{stem.group(0).rstrip('_') if stem else name}"


def fold_names(rows: Sequence[TableRow], protocol: LeaveOut) -> tuple[str, ...]:
    """Return the fold of each row; the rows of a fold are left out together.

    Raises:
        ValueError: The protocol leaves nothing out.
    """
    if protocol is LeaveOut.GPU:
        return tuple(gpu_of(find_device(row.device)) for row in rows)
    if protocol is LeaveOut.MODEL:
        return tuple(model_family_of(row.workload) for row in rows)
    raise ValueError(f"{protocol} has no folds")


def folds(
    rows: Sequence[TableRow], protocol: LeaveOut
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


def fingerprint(row: TableRow) -> str:
    """Return what tells a row from every other: its step, where it ran, and how long it took."""
    facts = (
        row.workload, row.device, row.num_devices, row.precision, row.batch_size, row.phase,
        row.optimizer, row.h2d, row.host, row.framework, f"{row.value_ns:.6g}",
    )  # fmt: skip
    return hashlib.sha256("\n".join(map(str, facts)).encode()).hexdigest()[:10]


# By the word in the column ``source``; other sources are named by their word alone.
_REPOSITORIES = {
    "ryujaehun": "https://github.com/ryujaehun/pytorch-gpu-benchmark",
    "lambda": "https://github.com/lambdal/deeplearning-benchmark",
    "neusight": "https://github.com/sitar-lab/NeuSight",
    "jcjohnson": "https://github.com/jcjohnson/cnn-benchmarks",
}


def provenance_of(rows: Sequence[TableRow], command: str) -> str:
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
