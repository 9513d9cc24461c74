"""Tables of measured steps: what is read, and what is refused with its place."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from breakeven.cost import era_of
from breakeven.errors import BreakevenError, UsageError
from breakeven.trace import NumberFormat, StepCase, TimedPhase
from breakeven.validate import RowFilter, read_table
from factories.accuracy import COLUMNS, table_text, write_table


def test_a_row_is_read_in_base_units(tmp_path: Path) -> None:
    path = write_table(
        tmp_path / "t.csv",
        {"value_ms": "1.25", "precision": "amp-fp16", "note": 'a, "quoted" note'},
    )
    (row,) = read_table(path)
    assert row.case_id == "a"
    assert row.value_ns == 1_250_000.0
    assert row.precision is NumberFormat.AMP_FP16
    assert row.phase is TimedPhase.TRAIN
    assert row.h2d == "pinned"
    assert (row.batch_size, row.num_devices) == (32, 1)
    assert row.note == 'a, "quoted" note'
    assert row.case == StepCase(
        workload="torchvision:resnet50",
        phase=TimedPhase.TRAIN,
        number_format=NumberFormat.AMP_FP16,
        optimizer="sgd",
        h2d="pinned",
        zeroes_gradients=False,
    )


@pytest.mark.parametrize(
    ("workload", "note", "number_format"),
    [
        ("transformers:BertModel?seq=8", "NVIDIA DeepLearningExamples; DDP", NumberFormat.FP16),
        ("transformers:BertModel?seq=8", "", NumberFormat.AMP_FP16),
        ("torchvision:resnet50", "NVIDIA DeepLearningExamples; DDP", NumberFormat.AMP_FP16),
    ],
)
def test_scripts_that_keep_their_network_in_half_precision_are_told_by_their_note(
    workload: str, note: str, number_format: NumberFormat, tmp_path: Path
) -> None:
    cells = {"workload": workload, "note": note, "precision": "amp-fp16"}
    (row,) = read_table(write_table(tmp_path / "t.csv", cells))
    assert row.precision is NumberFormat.AMP_FP16
    assert row.case.number_format is number_format


def test_optional_columns_may_be_missing(tmp_path: Path) -> None:
    columns = [column for column in COLUMNS if column not in {"h2d"}]
    path = tmp_path / "t.csv"
    path.write_text(table_text({}, columns=columns))
    (row,) = read_table(path)
    assert row.h2d == "none"


def test_an_empty_cell_of_an_optional_column_is_not_given(tmp_path: Path) -> None:
    (row,) = read_table(write_table(tmp_path / "t.csv", {"h2d": ""}))
    assert row.h2d == "none"


def test_a_table_may_be_compressed(tmp_path: Path) -> None:
    expected = read_table(write_table(tmp_path / "t.csv", {}, {}))
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress((tmp_path / "t.csv").read_bytes()))
    assert read_table(path) == expected
    path.write_bytes(b"case_id,source")
    with pytest.raises(BreakevenError, match="Not a gzipped file"):
        read_table(path)


def test_a_table_may_lie_in_several_files(tmp_path: Path) -> None:
    first = write_table(tmp_path / "first.csv", {})
    second = tmp_path / "second.csv"
    second.write_text(first.read_text().replace("a,", "b,", 1), "utf-8")
    assert [row.case_id for row in read_table(first, second)] == ["a", "b"]
    second.write_text(first.read_text(), "utf-8")
    with pytest.raises(BreakevenError, match=r"case_id “a” is that of .*first\.csv:2"):
        read_table(first, second)


def test_memory_format_and_compilation_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    columns = [*COLUMNS, "memory_format", "compile"]
    path.write_text(
        table_text({"memory_format": "channels_last", "compile": "default"}, columns=columns)
    )
    (row,) = read_table(path)
    assert row.compile == "default"
    assert row.case.channels_last


@pytest.mark.parametrize(
    ("framework", "is_before"),
    [
        ("torch 1.4 CUDA 10.0 cuDNN 7600", True),
        ("torch 1.13.0a0+d0d6b1f", True),
        ("torch NGC 20.10 (1.7.0a0) CUDA 11.1 cuDNN 8004", True),
        ("torch NGC 23.10 (2.1.0a0) CUDA 12.2", False),
        ("torch (version not recorded) CUDA 10.2 cuDNN 7605", True),
        ("torch (version not recorded) CUDA 11.7", False),
        ("torch ~0.4/1.0 (2018; not recorded)", True),
        ("PyTorch 1.0 (Jan 2019)", True),
        ("torch 2.1.0 CUDA 12.1 cuDNN 8902", False),
        ("torch 2.4.1 (ROCm)", False),
        ("torch 2.13", False),
        ("torch (not recorded)", False),
        ("torch7 cudnn 5005", False),
        ("torch7 no cudnn", False),
        ("mxnet 1.2", False),
        ("", False),
    ],
)
def test_which_torch_zeroes_gradients_in_place(framework: str, is_before: bool) -> None:
    assert era_of(framework).is_before_torch_2 is is_before


@pytest.mark.parametrize(
    ("phase", "zeroes"),
    [
        ("train", True),
        ("forward_backward", True),
        ("backward", False),
        ("forward", False),
        ("inference", False),
    ],
)
def test_only_whole_steps_zero_gradients(phase: str, zeroes: bool, tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.csv", {"phase": phase, "framework": "torch 1.4"})
    assert read_table(path)[0].case.zeroes_gradients is zeroes


@pytest.mark.parametrize(
    "document",
    [
        b"\xef\xbb\xbf" + table_text({}, {}).encode(),
        table_text({}, {}, line_end="\r\n").encode(),
        table_text({}, {}).replace("\n", "\n\n").encode(),
        table_text({}, {}).rstrip("\n").encode(),
        table_text({}, {}).replace("fp32", " fp32 ").encode(),
        table_text({}, {}).replace("note\n", "note,more\n").replace(",1,,\n", ",1,,,x\n").encode(),
    ],
    ids=["byte order mark", "CRLF", "blank lines", "no last line end", "spaces", "more columns"],
)
def test_ways_of_spreadsheets_change_nothing(document: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(document)
    expected = read_table(write_table(tmp_path / "plain.csv", {}, {}))
    assert read_table(path) == expected


@pytest.mark.parametrize(
    ("column", "cell", "shown", "allowed"),
    [
        ("value_ms", "0", "“0”", "above 0"),
        ("value_ms", "-3", "“-3”", "above 0"),
        ("value_ms", "nan", "“nan”", "above 0"),
        ("value_ms", "inf", "“inf”", "above 0"),
        ("value_ms", "1e999", "“1e999”", "up to 86,400,000"),
        ("value_ms", "86400001", "“86400001”", "up to 86,400,000"),
        ("value_ms", "", "an empty cell", "number of milliseconds"),
        ("value_ms", "1_000", "“1_000”", "number of milliseconds"),
        ("value_ms", "12 ms", "“12 ms”", "number of milliseconds"),
        ("value_ms", "٣", "“٣”", "number of milliseconds"),
        ("batch_size", "0", "“0”", "1 to 1,000,000,000"),
        ("batch_size", "1.5", "“1.5”", "a whole number"),
        ("batch_size", "9" * 200, "“" + "9" * 60 + "…”", "a whole number"),
        ("num_devices", "-1", "“-1”", "a whole number"),
        ("precision", "FP32", "“FP32”", "fp64, fp32, tf32, fp16, bf16, amp-fp16, amp-bf16"),
        ("phase", "training", "“training”", "train, forward_backward, forward, backward, infer"),
        ("h2d", "yes", "“yes”", "none, pageable, pinned"),
        ("optimizer", "SGD", "“SGD”", "lower case"),
        ("case_id", "", "an empty cell", "a name"),
        ("workload", " ", "an empty cell", "a name"),
        ("device", "", "an empty cell", "a name"),
    ],
)
def test_a_bad_cell_is_refused_with_its_place(
    column: str, cell: str, shown: str, allowed: str, tmp_path: Path
) -> None:
    path = write_table(tmp_path / "t.csv", {}, {column: cell})
    with pytest.raises(BreakevenError) as caught:
        read_table(path)
    assert caught.value.message == f"{path}:3: column {column}: {shown}"
    assert allowed in (caught.value.hint or "")
    assert caught.value.exit_code == 3


def test_the_line_of_a_row_after_a_cell_with_line_breaks(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.csv", {"note": "one\ntwo\nthree"}, {"value_ms": "x"})
    with pytest.raises(BreakevenError, match=r"t\.csv:5: column value_ms"):
        read_table(path)


def test_missing_columns_are_named_together(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("case_id,workload\na,b\n")
    with pytest.raises(
        BreakevenError, match=r"t\.csv:1: missing columns source, device,"
    ) as caught:
        read_table(path)
    assert "value_ms" in (caught.value.hint or "")
    columns = [column for column in COLUMNS if column != "split"]
    path.write_text(table_text({}, columns=columns))
    with pytest.raises(BreakevenError, match=r"missing column split\n"):
        read_table(path)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"", "is empty"),
        (b" \r\n\n", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (",".join(COLUMNS).encode() + b"\n", "column names but no rows"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", r":1: byte 0 is not UTF-8"),
        (table_text({}, {"note": "caf\xe9"}).encode("latin-1"), r":3: byte \d+ is not UTF-8"),
        ("\ufeff".encode("utf-16"), "is not UTF-8"),
        (b'{"rows": []}', "missing columns"),
        (table_text({}).encode() + b"b,lab,too few\n", r":3: 3 cells in a table of 16 columns"),
        (table_text({}).encode().replace(b",lab,", b",la,b,"), r":2: 17 cells .* 16 columns"),
        (table_text({}).encode() + b'"b,open quote\n', r":3: not CSV: unexpected end of data"),
        (table_text({}).encode() + b'b,"x"y\n', r":3: not CSV: "),
        (table_text({}).encode() + b"b" * 200_000, r":3: not CSV: field larger than"),
        (table_text({}).encode().replace(b"note\n", b"split\n", 1), "missing column note"),
        (
            table_text({}).encode().replace(b"repeats", b"split", 1),
            ":1: column split is there twice",
        ),
    ],
)
def test_files_that_are_no_table(document: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(document)
    with pytest.raises(BreakevenError, match=message):
        read_table(path)


def test_places_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BreakevenError, match=r"cannot read .*absent.csv: No such file"):
        read_table(tmp_path / "absent.csv")
    with pytest.raises(BreakevenError, match=r"cannot read .*: Is a directory"):
        read_table(tmp_path)


def test_a_case_id_is_there_once(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.csv", {}, {"case_id": "x"}, {"case_id": "x"})
    with pytest.raises(BreakevenError, match=r"t\.csv:4: case_id “x” is that of .*:3 too"):
        read_table(path)


def test_unknown_devices_and_workloads_are_read(tmp_path: Path) -> None:
    path = write_table(tmp_path / "t.csv", {"device": "abacus", "workload": "what:is?this"})
    assert read_table(path)[0].device == "abacus"


def test_a_filter_takes_any_of_the_values_of_each_key(tmp_path: Path) -> None:
    rows = read_table(
        write_table(
            tmp_path / "t.csv",
            {"device": "T4"},
            {"device": "P4"},
            {"device": "V100"},
            {"device": "T4", "num_devices": "8"},
            {"device": "T4", "precision": "fp16"},
        )
    )
    only = RowFilter.parse(["device=t4", "device=P4", "num_devices=1", "precision=fp32"])
    assert [row.case_id for row in only.select(rows)] == ["a", "b"]
    assert RowFilter.parse([]).select(rows) == rows
    with pytest.raises(BreakevenError, match="no row has device “A100”") as caught:
        RowFilter.parse(["device=A100"]).select(rows)
    assert "“T4”, “P4”, “V100”" in (caught.value.hint or "")


@pytest.mark.parametrize("condition", ["device", "=T4", "gpu=T4", "value_ms=3", ""])
def test_a_filter_of_another_form_is_a_mistake_of_use(condition: str) -> None:
    with pytest.raises(UsageError, match="is no condition KEY=VALUE") as caught:
        RowFilter.parse([condition])
    assert "device" in (caught.value.hint or "")
