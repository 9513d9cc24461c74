"""Which rows are left out together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from breakeven.device import find_device
from breakeven.report import LeaveOut
from breakeven.validate import MeasuredRow, fingerprint, model_family_of, read_table
from factories.accuracy import write_table
from lab.held_out import fold_names, folds, gpu_of


def rows(tmp_path: Path, *cells: Mapping[str, str]) -> tuple[MeasuredRow, ...]:
    return tuple(read_table(write_table(tmp_path / "t.csv", *cells)))


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("A100 PCIe 40GB", "A100"),
        ("A100 SXM4 80GB", "A100"),
        ("V100 (DGX Station)", "V100"),
        ("V100 SXM2 32GB", "V100"),
        ("H100 NVL 94GB", "H100"),
        ("RTX 3080 Laptop", "RTX 3080"),
        ("RTX 2080 Max-Q", "RTX 2080"),
        ("RTX 2080 Ti", "RTX 2080 Ti"),
        ("RTX 4060 Ti 16GB", "RTX 4060 Ti"),
        ("A10", "A10"),
    ],
)
def test_boards_of_one_gpu(name: str, gpu: str) -> None:
    assert gpu_of(find_device(name)) == gpu


@pytest.mark.parametrize(
    ("workload", "family"),
    [
        ("torchvision:resnet50", "torchvision:resnet"),
        ("torchvision:resnet152?width=2", "torchvision:resnet"),
        ("torchvision:resnext101_32x8d", "torchvision:resnext"),
        ("torchvision:wide_resnet50_2", "torchvision:wide_resnet"),
        ("torchvision:vgg19_bn", "torchvision:vgg"),
        ("torchvision:mobilenet_v2", "torchvision:mobilenet"),
        ("torchvision:mnasnet0_5", "torchvision:mnasnet"),
        ("transformers:BertForQuestionAnswering?seq=384", "transformers:Bert"),
        ("transformers:BertModel", "transformers:Bert"),
        ("transformers:GPT2LMHeadModel?n_layer=48", "transformers:GPT2"),
        ("transformers:OPTForCausalLM", "transformers:OPT"),
        ("breakeven:lstm?layers=2", "breakeven:lstm"),
        ("breakeven:lstm", "breakeven:lstm"),
    ],
)
def test_family_of_a_model(workload: str, family: str) -> None:
    assert model_family_of(workload) == family


def test_folds_by_hand(tmp_path: Path) -> None:
    table = rows(
        tmp_path,
        {"device": "A100 PCIe 40GB", "workload": "torchvision:resnet18", "source": "lab"},
        {"device": "T4", "workload": "torchvision:vgg11", "source": "lab"},
        {"device": "A100 SXM4 80GB", "workload": "torchvision:vgg16", "source": ""},
    )
    assert folds(table, LeaveOut.GPU) == {"A100": ((1,), (0, 2)), "T4": ((0, 2), (1,))}
    assert folds(table, LeaveOut.MODEL) == {
        "torchvision:resnet": ((1, 2), (0,)),
        "torchvision:vgg": ((0,), (1, 2)),
    }
    assert folds(table, LeaveOut.SOURCE) == {"lab": ((2,), (0, 1)), "not given": ((0, 1), (2,))}
    with pytest.raises(ValueError, match="no folds"):
        fold_names(table, LeaveOut.NONE)


def test_fingerprints_tell_rows_apart_by_what_was_measured(tmp_path: Path) -> None:
    changes = (
        {},
        {"workload": "torchvision:resnet18"},
        {"device": "A100 PCIe 40GB"},
        {"num_devices": "2"},
        {"precision": "tf32"},
        {"batch_size": "64"},
        {"phase": "inference"},
        {"optimizer": "adam"},
        {"h2d": "none"},
        {"host": "EPYC"},
        {"framework": "torch 1.4"},
        {"value_ms": "100.1"},
    )
    table = rows(tmp_path, *changes)
    assert len({fingerprint(row) for row in table}) == len(changes)
    # Under another name, and with another remark, it is the same measurement.
    again = rows(tmp_path, {"note": "again", "split": "x", "source": "other", "repeats": "3"})
    assert fingerprint(again[0]) == fingerprint(table[0])
