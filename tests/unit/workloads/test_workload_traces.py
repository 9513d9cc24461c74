"""Steps traced without memory, against what is worked out by hand or really recorded."""

from collections import Counter

import pytest
import torch

from breakeven.capture import trace_step
from breakeven.errors import WorkloadError
from breakeven.trace import (
    NumberFormat,
    Op,
    Phase,
    StepCase,
    StepTrace,
    TensorSpec,
    TimedPhase,
)
from breakeven.workloads import trace_case

MLP = "breakeven:mlp?input=5&width=7&depth=2&classes=3"


def traced(workload=MLP, phase=TimedPhase.TRAIN, **changes) -> StepTrace:
    return trace_case(StepCase(workload=workload, phase=phase, **changes)).first


def op_names(trace: StepTrace, phase: Phase) -> list[str]:
    return [op.name.split(".")[1] for op in trace.ops if op.phase is phase]


def described(trace: StepTrace):
    """What a prediction can tell of each operator; lifting a Python number is none."""
    return [
        (op.name, op.phase, op.device, arguments(op), specs(op.inputs), specs(op.outputs))
        for op in trace.ops
        if op.name != "aten.lift_fresh.default"
    ]


def arguments(op: Op):
    # Corrections of Adam's moments depend on how many steps went before.
    return {name: value for name, value in op.attributes.items() if name != "scalars"}


def specs(tensors: tuple[TensorSpec, ...]):
    return [(spec.shape, spec.dtype, spec.layout, spec.device) for spec in tensors]


def test_a_step_of_two_layers():
    step = traced(optimizer="sgd-plain")
    assert op_names(step, Phase.FORWARD) == [
        "t", "addmm", "relu", "detach", "t", "addmm",
        "_log_softmax", "detach", "nll_loss_forward", "ones_like",
    ]  # fmt: skip
    assert Counter(op_names(step, Phase.BACKWARD))["mm"] == 3
    assert op_names(step, Phase.OPTIMIZER) == ["_foreach_add_"]
    assert step.num_parameters == 5 * 7 + 7 + 7 * 3 + 3
    assert step.syncs == ()
    assert step.batch_size == 2


def test_shapes_at_another_batch_size():
    step = trace_case(StepCase(workload=MLP, phase=TimedPhase.INFERENCE)).at(100)
    products = [op for op in step.ops if op.name == "aten.addmm.default"]
    assert [op.outputs[0].shape for op in products] == [(100, 7), (100, 3)]


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("width", [16, 300])
def test_a_trace_without_memory_is_that_of_the_real_step(optimizer, width):
    model = torch.nn.Sequential(
        torch.nn.Linear(12, width), torch.nn.ReLU(), torch.nn.Linear(width, 4)
    )
    inputs, labels = torch.randn(2, 12), torch.zeros(2, dtype=torch.int64)
    update = {
        "adam": lambda p: torch.optim.Adam(p, foreach=True),
        "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=1e-4, foreach=True),
    }[optimizer](model.parameters())

    def step():
        update.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        update.step()

    real = trace_step(step).trace
    fake = traced(f"breakeven:mlp?input=12&width={width}&depth=2&classes=4", optimizer=optimizer)
    assert described(fake) == described(real)
    assert fake.peak_memory_bytes == real.peak_memory_bytes
    assert fake.num_parameters == real.num_parameters


def test_a_recurrent_layer_is_one_operator_each_way():
    step = traced("breakeven:lstm?hidden=6&layers=2&seq=4&input=3", optimizer="adam")
    recurrent = [op for op in step.ops if "cudnn_rnn" in op.name]
    assert [op.name for op in recurrent] == [
        "aten._cudnn_rnn.default", "aten._cudnn_rnn_backward.default",
    ]  # fmt: skip
    assert recurrent[0].inputs[0].shape == (2, 4, 3)
    # Autograd takes what the kernel wrote; it copies no gradient.
    assert "copy_" not in op_names(step, Phase.BACKWARD)


def test_counters_of_adam_stay_on_the_host():
    step = traced(optimizer="adam")
    hosted = [op for op in step.ops if op.is_on_host]
    assert {op.name.split(".")[1] for op in hosted} == {
        "lift_fresh", "_foreach_add_", "_local_scalar_dense",
    }  # fmt: skip
    assert {op.phase for op in hosted} == {Phase.OPTIMIZER}


def test_each_call_gives_the_same_trace():
    assert traced(optimizer="adamw") == traced(optimizer="adamw")


def test_phases_of_a_benchmark_end_with_a_wait():
    both = traced(phase=TimedPhase.FORWARD_BACKWARD)
    assert [sync.kind for sync in both.syncs] == ["synchronize"]
    assert op_names(both, Phase.OPTIMIZER) == []
    forward = traced(phase=TimedPhase.FORWARD)
    assert op_names(forward, Phase.FORWARD) == ["t", "addmm", "relu", "detach", "t", "addmm"]
    assert op_names(forward, Phase.BACKWARD) == []
    backward = traced(phase=TimedPhase.BACKWARD)
    assert op_names(backward, Phase.FORWARD) == []
    assert op_names(backward, Phase.BACKWARD) == op_names(both, Phase.BACKWARD)
    inference = traced(phase=TimedPhase.INFERENCE)
    assert op_names(inference, Phase.FORWARD) == ["t", "addmm", "relu", "t", "addmm"]


def test_gradients_are_zeroed_in_place_and_added_to_or_released_and_taken():
    zeroed = traced(phase=TimedPhase.FORWARD_BACKWARD, zeroes_gradients=True)
    assert op_names(zeroed, Phase.FORWARD)[:4] == ["zero_"] * 4
    assert Counter(op_names(zeroed, Phase.BACKWARD))["add_"] == 4
    released = traced(phase=TimedPhase.FORWARD_BACKWARD)
    assert "zero_" not in op_names(released, Phase.FORWARD)
    assert "add_" not in op_names(released, Phase.BACKWARD)


@pytest.mark.parametrize(
    ("number_format", "dtype", "num_bytes"),
    [(NumberFormat.FP64, "float64", 8), (NumberFormat.FP16, "float16", 2),
     (NumberFormat.BF16, "bfloat16", 2)],
)  # fmt: skip
def test_a_number_format_of_parameters_and_inputs(number_format, dtype, num_bytes):
    step = traced(number_format=number_format, h2d="pageable", optimizer="sgd")
    floating = {
        spec.dtype
        for op in step.ops
        for spec in (*op.inputs, *op.outputs)
        if "int" not in spec.dtype
    }
    assert floating == {dtype}
    # 2 samples of 5 inputs, and a label of int64.
    assert step.h2d_bytes == 2 * 5 * num_bytes + 2 * 8
    assert all(copy.is_blocking for copy in step.copies)


def test_inference_copies_no_labels():
    step = traced(phase=TimedPhase.INFERENCE, h2d="pinned")
    assert step.h2d_bytes == 2 * 5 * 4
    assert not any(copy.is_blocking for copy in step.copies)


def test_autocast_casts_and_scales_as_cuda_does():
    step = traced(optimizer="sgd", number_format=NumberFormat.AMP_FP16)
    assert step.settings.autocast_dtype == "float16"
    by_name = {op.name: op for op in step.ops}
    assert by_name["aten.addmm.default"].inputs[0].dtype == "float16"
    assert by_name["aten._log_softmax.default"].inputs[0].dtype == "float32"
    assert by_name["aten.nll_loss_forward.default"].inputs[0].dtype == "float32"
    # Overflow is looked for on the device, and the host reads whether there was any.
    unscaled = by_name["aten._amp_foreach_non_finite_check_and_unscale_.default"]
    assert len(unscaled.inputs) == 4 + 2
    assert [sync.kind for sync in step.syncs] == ["item"]
    assert "aten._foreach_add_.List" in by_name  # the update was not skipped


def test_autocast_in_bfloat16_scales_nothing():
    step = traced(optimizer="sgd", number_format=NumberFormat.AMP_BF16)
    assert step.settings.autocast_dtype == "bfloat16"
    assert not [op for op in step.ops if "amp" in op.name]
    assert step.syncs == ()


def test_settings_of_a_case():
    plain = traced(phase=TimedPhase.INFERENCE).settings
    assert (plain.allow_tf32_matmul, plain.allow_tf32_convolution) == (False, False)
    assert plain.cudnn_benchmark
    switched = traced(phase=TimedPhase.INFERENCE, number_format=NumberFormat.TF32).settings
    assert (switched.allow_tf32_matmul, switched.allow_tf32_convolution) == (True, True)


def test_a_stream_clips_its_gradients_and_reads_its_loss():
    step = traced("breakeven:rnn-stream", optimizer="adam")
    names = op_names(step, Phase.OPTIMIZER)
    assert names.index("_foreach_norm") < names.index("_foreach_lerp_")
    assert [sync.kind for sync in step.syncs] == ["item"]
    assert step.num_parameters == 264 * 256 + 256 + 264 * 8 + 8


def test_layers_of_the_disc_classifier_double():
    step = traced("breakeven:disc-mlp?depth=3", TimedPhase.INFERENCE)
    widths = [op.outputs[0].shape[1] for op in step.ops if op.name == "aten.addmm.default"]
    assert widths == [4, 8, 2]


@pytest.mark.parametrize(
    ("workload", "message", "hint"),
    [
        ("breakeven:disk-mlp", "no workload 'disk-mlp'", "disc-mlp"),
        ("breakeven:mlp?widht=3", "no option 'widht'", "width"),
        ("breakeven:mlp?width=0", "width=0", "width=8"),
        ("breakeven:mlp?width=2.5", "width=2.5", "width=8"),
        ("nowhere.py:step", "no file 'nowhere.py'", "path"),
    ],
)
def test_what_is_not_there_is_named(workload, message, hint):
    with pytest.raises(WorkloadError, match=message) as caught:
        traced(workload)
    assert hint in caught.value.hint


def test_an_unknown_optimizer_is_named():
    with pytest.raises(WorkloadError, match="'adamm'") as caught:
        traced(optimizer="adamm")
    assert "adam" in caught.value.hint


def test_memory_of_inference_by_hand():
    step = traced("breakeven:mlp?input=256&width=512&depth=2&classes=4", TimedPhase.INFERENCE)
    parameters = 4 * (256 * 512 + 512 + 512 * 4 + 4)
    # The input of two samples, and the hidden layer before and after its activation; blocks of
    # 512 bytes, of which the last bias fills one.
    assert step.peak_memory_bytes == parameters + (512 - 16) + 2 * 4 * (256 + 2 * 512)


@pytest.mark.parametrize("library", ["timm", "torchvision", "transformers"])
def test_what_a_missing_package_has_is_refused_alike(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a table names it once, and not for each of its models."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    monkeypatch.setattr("breakeven.workloads.libraries.import_torchvision", lambda: None)
    said = set()
    for name in ("one", "other?a=1"):
        with pytest.raises(WorkloadError) as refused:
            traced(f"{library}:{name}")
        said.add(refused.value.sentence)
    assert said == {
        f"workloads of {library} need it, and it is not installed; pip install {library}"
    }


@pytest.mark.parametrize(("query", "hint"), [("", "add ?seq=512"), ("?n_layer=1", "add &seq=512")])
def test_how_to_say_the_tokens_of_a_sample(query: str, hint: str) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(WorkloadError, match="how many tokens") as refused:
        traced(f"transformers:GPT2LMHeadModel{query}")
    assert refused.value.hint == hint
