"""Rows as tables of others have them: what is understood, assumed, refused by a reason, unread."""

from __future__ import annotations

from pathlib import Path

import pytest

from breakeven.errors import BreakevenError
from breakeven.progress import SilentProgress
from breakeven.report import Unpredictable
from breakeven.report.validate import stored_validation, unread_reasons, warnings
from breakeven.trace import Attention
from breakeven.validate import MeasuredRow, read_table, validate_table
from breakeven.validate.traced_rows import TracedRows
from factories.accuracy import FakePredictor, write_table
from lab.validate import ErrorBudget, exceeded_budgets


def read_one(path: Path, **cells: str) -> MeasuredRow:
    (row,) = read_table(write_table(path, cells))
    return row


@pytest.mark.parametrize(
    ("cell", "word"),
    [
        ("adamw (fused)", "adamw-fused"),
        ("adamw (foreach)", "adamw-foreach"),
        ("decoupled_adamw", "decoupled_adamw"),
        ("none", "none"),
    ],
)
def test_optimizers_with_how_they_update(cell: str, word: str, tmp_path: Path) -> None:
    assert read_one(tmp_path / "t.csv", optimizer=cell).optimizer == word


def test_the_optimizer_of_a_step_without_an_update_does_not_matter(tmp_path: Path) -> None:
    cells = {"phase": "forward_backward", "optimizer": "SGD lr 0.01, not timed"}
    assert read_one(tmp_path / "t.csv", **cells).optimizer == "none"
    with pytest.raises(BreakevenError, match="column optimizer"):
        read_one(tmp_path / "t.csv", optimizer="SGD lr 0.01")


@pytest.mark.parametrize(
    ("cell", "attention"),
    [
        ("", Attention.UNSAID),
        ("eager", Attention.EAGER),
        ("sdpa", Attention.SDPA),
        ("flash (triton)", Attention.SDPA),
        ("xformers/flash", Attention.SDPA),
    ],
)
def test_words_for_attention(cell: str, attention: Attention, tmp_path: Path) -> None:
    row = read_one(tmp_path / "t.csv", attention=cell)
    assert row.attention is attention
    assert row.case.attention is attention


def test_a_remark_after_a_device_is_left_out_and_told(tmp_path: Path) -> None:
    row = read_one(tmp_path / "t.csv", device="A100 (form factor and memory not named)")
    assert row.device == "A100"
    assert [caveat.message for caveat in row.caveats] == [
        "The table says “A100 (form factor and memory not named)”: taken as A100 SXM4 80GB."
    ]
    # What is part of a name is no remark, and what is unknown stays as it is written.
    for name in ("V100 (DGX Station)", "TITAN X (Pascal)", "abacus (wood)", "(unnamed)"):
        row = read_one(tmp_path / "t.csv", device=name)
        assert (row.device, row.caveats) == (name, ())


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"parallelism": "fsdp FULL_SHARD"}, "parameters shared out over devices"),
        ({"note": "8 GPUs, ZeRO-3"}, "parameters shared out over devices"),
        ({"grad_accum": "4"}, "gradients of several micro-batches"),
        ({"act_ckpt": "True"}, "activations computed twice"),
        (
            {"grad_accum": "2", "act_ckpt": "true"},
            "gradients of several micro-batches, activations computed twice",
        ),
    ],
)
def test_what_no_prediction_knows_is_a_reason(
    cells: dict[str, str], reason: str, tmp_path: Path
) -> None:
    row = read_one(tmp_path / "t.csv", **cells)
    traced = TracedRows.of([row], progress=SilentProgress())
    assert traced.steps == (Unpredictable(code="not-modelled", reason=reason),)


def test_columns_that_say_the_usual_change_nothing(tmp_path: Path) -> None:
    cells = {"parallelism": "none", "grad_accum": "1", "act_ckpt": "False"}
    assert read_one(tmp_path / "t.csv", **cells).not_modelled == ""


def validated(path: Path):
    return validate_table(path, predictor=FakePredictor())


def test_rows_that_cannot_be_read_are_named_and_count_nowhere(tmp_path: Path) -> None:
    rows = ({}, {"precision": "fp8"}, {"value_ms": ""}, {"precision": "fp8"})
    path = write_table(tmp_path / "t.csv", *rows)
    report = validated(path)
    assert [row.case_id for row in report.rows] == ["a"]
    assert report.overall.num_rows == 1
    assert [(row.case_id, row.place, row.reason) for row in report.unread] == [
        ("b", f"{path}:3", "column precision: “fp8”"),
        ("c", f"{path}:4", "column value_ms: an empty cell"),
        ("d", f"{path}:5", "column precision: “fp8”"),
    ]
    assert report.unread[0].allowed.startswith("fp64, fp32")
    budgets = (ErrorBudget(by="all:all", median=1.0),)
    assert exceeded_budgets(report, budgets) == ("3 rows could not be read",)
    assert exceeded_budgets(report, ()) == ()
    # What learns from a table is stricter.
    with pytest.raises(BreakevenError, match=r"t\.csv:3: column precision"):
        read_table(path)


def test_a_table_without_a_readable_row_is_refused(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.csv", {"value_ms": "12 ms"}, {"value_ms": ""})
    with pytest.raises(BreakevenError, match=r"t\.csv:2: column value_ms: “12 ms”"):
        validated(path)


def test_rows_that_were_not_read_are_shown_and_stored(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.csv", {}, *({"precision": "fp8"} for _ in range(5)))
    report = validated(path)
    assert warnings(report) == (
        "5 rows of this table could not be read; the figures leave them out.",
    )
    assert unread_reasons(report) == (
        (
            "b, c, d, ...",
            "column precision: “fp8”; allowed: fp64, fp32, tf32, fp16, bf16, amp-fp16, amp-bf16",
            5,
        ),
    )
    assert stored_validation(report).unread == report.unread
