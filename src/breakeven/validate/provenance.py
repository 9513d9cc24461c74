"""Where the rows of a table are from, for the files that are fitted to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from breakeven.validate.table_row import TableRow

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
