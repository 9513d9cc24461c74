"""Functions of a user's own file, named path.py:function."""

from collections import Counter

import pytest

from breakeven.errors import WorkloadError
from breakeven.trace import NumberFormat, Phase, StepCase, TimedPhase
from breakeven.workloads import trace_case

SOURCE = """
import torch
from torch import nn
from neighbour import WIDTH

def pair(batch_size, dropout=0):
    model = nn.Sequential(nn.Linear(4, WIDTH), nn.Dropout(dropout / 10), nn.Linear(WIDTH, 2))
    return model, torch.rand(batch_size, 4)

def triple(batch_size):
    model, inputs = pair(batch_size)
    return model.to("cpu"), {"input": inputs}, lambda result: result.pow(2).sum()

def loop(batch_size):
    return lambda: None

def number(batch_size):
    return batch_size

def reading(batch_size):
    model, inputs = pair(batch_size)
    return model, inputs, lambda result: result[result > 0].sum()

def broken(batch_size):
    raise KeyError("oops")
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "neighbour.py").write_text("WIDTH = 6\n")
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def traced(file, function, **changes):
    given = {"phase": TimedPhase.TRAIN, "workload": f"{file}:{function}", **changes}
    return trace_case(StepCase(**given)).first


def names(trace):
    return Counter(op.name.split(".")[1] for op in trace.ops)


def test_a_model_and_its_inputs(file):
    step = traced(file, "pair", optimizer="adam", h2d="pageable")
    assert names(step)["addmm"] == 2
    assert names(step)["mean"] == 1
    assert step.h2d_bytes == 2 * 4 * 4
    assert step.num_parameters == 4 * 6 + 6 + 6 * 2 + 2


def test_options_are_arguments(file):
    assert names(traced(file, "pair?dropout=5"))["native_dropout"] == 1
    inference = traced(file, "pair?dropout=5", phase=TimedPhase.INFERENCE)
    assert names(inference)["native_dropout"] == 0


def test_a_loss_and_lines_of_the_file(file):
    step = traced(file, "triple")
    power = next(op for op in step.ops if op.name.startswith("aten.pow"))
    assert power.phase is Phase.FORWARD
    assert power.location.file == str(file)
    assert "lambda result" in file.read_text().splitlines()[power.location.line - 1]


def test_the_model_is_cast(file):
    step = traced(file, "triple", number_format=NumberFormat.FP16)
    assert {spec.dtype for op in step.ops for spec in op.inputs} == {"float16"}


def test_what_a_function_may_not_do(file):
    with pytest.raises(WorkloadError, match="returned function, not a step"):
        traced(file, "loop")
    with pytest.raises(WorkloadError, match="returned int, not a step"):
        traced(file, "number")
    with pytest.raises(WorkloadError, match="cannot be traced") as caught:
        traced(file, "reading")
    assert "values of tensors" in caught.value.hint
    with pytest.raises(WorkloadError, match="KeyError: 'oops'"):
        traced(file, "broken")
    with pytest.raises(WorkloadError, match="no function 'pear'") as caught:
        traced(file, "pear")
    assert "pair" in caught.value.hint
