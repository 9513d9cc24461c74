"""Made-up facts of steps, as known before a search, for the tests of candidates."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from breakeven.settings.setting import StepFacts
from breakeven.trace import (
    Call,
    LoaderFacts,
    ModelCall,
    Op,
    OptimizerFacts,
    Phase,
    RunFacts,
    Settings,
    StepTrace,
    TensorSpec,
)

LOADER = LoaderFacts(
    location=None,
    batch_size=32,
    num_samples=4096,
    num_workers=0,
    pin_memory=False,
    persistent_workers=False,
    num_epochs=1,
    dataset="TensorDataset",
    data_bytes=4096 * 20 * 4,
    is_indexed=True,
    has_tensor_rows=True,
    fetch_ns=500_000,
    fetch_cpu_ns=500_000,
)
ADAM = OptimizerFacts(name="Adam", location=None, num_tensors=8)
MODEL_CALL = ModelCall(
    model="Sequential",
    location=None,
    stack=-1,
    is_training=True,
    has_grad=True,
    is_used_in_backward=True,
    first_event=0,
    num_events=20,
)
PRODUCT = Op(
    name="aten.addmm.default",
    inputs=(
        TensorSpec(shape=(16,), dtype="float32", device="cpu"),
        TensorSpec(shape=(32, 16), dtype="float32", device="cpu"),
    ),
    outputs=(),
    device="cpu",
)
DOUBLE_PRODUCT = replace(
    PRODUCT, inputs=tuple(replace(spec, dtype="float64") for spec in PRODUCT.inputs)
)
CONVOLUTION = Op(
    name="aten.convolution.default",
    inputs=(
        TensorSpec(shape=(8, 3, 32, 32), dtype="float32", device="cpu"),
        TensorSpec(shape=(16, 3, 3, 3), dtype="float32", device="cpu"),
    ),
    outputs=(),
    device="cpu",
)
ACTIVATION = Op(name="aten.tanh.default", inputs=PRODUCT.inputs[1:], outputs=(), device="cpu")


def mlp(**changes: Any) -> StepFacts:
    """Return the facts of a launch-bound MLP with a DataLoader of a TensorDataset.

    Args:
        changes: Fields of ``StepFacts``, of its trace or of the trace's ``RunFacts``; also
            ``loader`` with fields of the loader, ``optimizer`` with fields of the optimizer, and
            ``calls`` with names of functions that the script calls.
    """
    loader = changes.pop("loader", {})
    optimizer = changes.pop("optimizer", {})
    calls = tuple(Call(name=name, location=None, count=1) for name in changes.pop("calls", ()))
    of_run = {
        "loaders": (replace(LOADER, **loader),),
        "optimizers": (replace(ADAM, **optimizer),),
        "model_calls": (MODEL_CALL,),
        "calls": calls,
        "num_convolution_shapes": 1,
    }
    of_run |= {
        name: changes.pop(name)
        for name in RunFacts.__struct_fields__
        if name in changes and name not in StepFacts.__dataclass_fields__
    }
    of_trace = {"events": (PRODUCT, ACTIVATION) * 10, "settings": Settings()}
    of_trace |= {name: changes.pop(name) for name in of_trace if name in changes}
    of_step = {
        "step_ns": 900_000.0,
        "num_threads": 4,
        "num_cores": 4,
        "dispatch_ns": 4_000.0,
        "page_faults": 0.0,
        "is_on_cuda": False,
        "has_bf16": True,
        "has_compiler": True,
        "is_compiled": False,
    }
    trace = StepTrace(**of_trace, facts=RunFacts(**of_run))
    return StepFacts(trace=trace, **{**of_step, **changes})


def convnet(**changes: Any) -> StepFacts:
    """Return the facts of a compute-bound network; for ``changes`` see ``mlp``."""
    own = {"events": (CONVOLUTION, ACTIVATION) * 10, "step_ns": 90e6, "page_faults": 5_000.0}
    return mlp(**{**own, **changes})


def in_backward(op: Op) -> Op:
    """Return an operator moved to the backward pass, in autograd's thread."""
    return replace(op, phase=Phase.BACKWARD, thread=1)
