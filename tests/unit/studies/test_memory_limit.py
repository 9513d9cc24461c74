"""How much memory a step may be expected to need."""

from __future__ import annotations

from pathlib import Path

import pytest

from breakeven.studies import batch_sizes
from breakeven.studies.batch_sizes import why_not_measured


@pytest.mark.parametrize(
    ("limit", "is_short"), [("2097152\n", True), ("max\n", False), (None, False)]
)
def test_limit_of_a_container_counts(
    limit: str | None, is_short: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "memory.max"
    if limit is not None:
        file.write_text(limit)
    monkeypatch.setattr(batch_sizes, "_CONTAINER_LIMITS", (tmp_path / "absent", file))
    assert why_not_measured(1.0, 1_000_000) is None
    assert (why_not_measured(1.0, 1_100_000) is not None) is is_short
