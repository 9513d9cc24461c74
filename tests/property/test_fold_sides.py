"""Folds: what must hold for any table."""

from __future__ import annotations

from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from breakeven.device import find_device, load_catalogue
from breakeven.report import LeaveOut
from breakeven.trace import NumberFormat, TimedPhase
from breakeven.validate import MeasuredRow, model_family_of
from lab.held_out import folds, gpu_of

WORKLOADS = (
    "torchvision:resnet18", "torchvision:resnet50", "torchvision:resnext50_32x4d",
    "torchvision:wide_resnet50_2", "torchvision:vgg11", "torchvision:vgg19_bn",
    "transformers:BertModel", "transformers:BertForQuestionAnswering?seq=384", "breakeven:mlp",
    "mine.py:step",
)  # fmt: skip


@cache
def family(workload: str) -> str:
    return model_family_of(workload)


@cache
def gpu(name: str) -> str:
    return gpu_of(find_device(name))


def row(workload: str, device: str, num_devices: int) -> MeasuredRow:
    return MeasuredRow(
        case_id="a", source="", workload=workload, device=device, num_devices=num_devices,
        precision=NumberFormat.FP32, batch_size=1, phase=TimedPhase.TRAIN, optimizer="none",
        h2d="none", host="", framework="", value_ms=1e-6, split="", note="",
    )  # fmt: skip


tables = st.lists(
    st.builds(
        row,
        st.sampled_from(WORKLOADS),
        st.sampled_from([device.name for device in load_catalogue()]),
        st.integers(1, 4),
    ),
    max_size=40,
)


@given(tables, st.sampled_from([LeaveOut.GPU, LeaveOut.MODEL]))
def test_nothing_is_on_both_sides_and_every_row_is_predicted_once(
    table: list[MeasuredRow], protocol: LeaveOut
) -> None:
    predicted: list[int] = []
    for others, members in folds(table, protocol).values():
        if protocol is LeaveOut.GPU:
            names = [gpu(row.device) for row in table]
        else:
            names = [family(row.workload) for row in table]
        assert members
        assert {names[p] for p in members}.isdisjoint(names[p] for p in others)
        # All that is not left out may be learned from.
        assert sorted((*others, *members)) == list(range(len(table)))
        predicted += members
    assert sorted(predicted) == list(range(len(table)))
