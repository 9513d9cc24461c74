"""Ways of writing a training loop that are easily recorded wrongly, each with what CUDA does."""

from __future__ import annotations

import pytest
from check_process import SCRIPTS, line_of
from script_runs import recorded, timed

from breakeven.capture import Launcher
from breakeven.cost import reference_host
from breakeven.device import find_device
from breakeven.simulate import predict_steps
from breakeven.trace import GraphLaunch, Phase, StepTrace

pytestmark = pytest.mark.slow


def trace_of(launcher: Launcher, name: str, *arguments: str, is_moved: bool = False) -> StepTrace:
    return recorded(launcher, name, *arguments, is_moved=is_moved).trace


def fault_lines(trace: StepTrace) -> set[int]:
    return {fault.location.line for fault in trace.faults if fault.location}


def sync_places(trace: StepTrace) -> list[tuple[str, int]]:
    return [(sync.kind, sync.location.line) for sync in trace.syncs if sync.location]


def names(trace: StepTrace, device: str = "") -> list[str]:
    # A scalar that Python made is no work.
    every = [op.name for op in trace.ops if device in ("", op.device)]
    return [name for name in every if name != "aten.lift_fresh.default"]


def test_filling_under_a_mask_and_one_hot_read_nothing_back(launcher: Launcher) -> None:
    trace = trace_of(launcher, "masks_and_classes.py")
    assert trace.syncs == ()
    assert {"aten.masked_fill_.Scalar", "aten.scatter_.value"} <= set(names(trace))
    assert not any("index_put" in name or "aminmax" in name for name in names(trace))


def test_packed_sequences_are_one_call_of_cudnn_and_their_lengths_belong_on_the_host(
    launcher: Launcher,
) -> None:
    trace = trace_of(launcher, "packed_sequences.py")
    assert (trace.faults, trace.copies) == ((), ())
    assert names(trace).count("aten._cudnn_rnn.default") == 1
    on_device = trace_of(launcher, "packed_sequences.py", "device")
    assert fault_lines(on_device) == {line_of(SCRIPTS / "packed_sequences.py", "packed = ")}


def test_the_ctc_loss_reads_lengths_on_the_host(launcher: Launcher) -> None:
    on_host = trace_of(launcher, "speech.py")
    assert (on_host.faults, on_host.syncs) == ((), ())
    line = line_of(SCRIPTS / "speech.py", "ctc_loss(")
    assert sync_places(trace_of(launcher, "speech.py", "device")) == [("ctc_loss", line)] * 2


@pytest.mark.parametrize(
    ("name", "has_cuda", "copied", "on_host"),
    [
        pytest.param("legacy_types.py", False, [64, 64, 192], None, id="types of torch.cuda"),
        pytest.param("reads_checkpoint.py", False, [], {"aten.add_.Tensor"}, id="map_location"),
        pytest.param("one_gpu_data_parallel.py", True, [192], None, id="DataParallel on one GPU"),
        pytest.param("torchscript.py", False, None, set(), id="TorchScript"),
    ],
)
def test_what_makes_tensors_on_the_device_runs_recorded_and_plainly(
    launcher: Launcher,
    name: str,
    has_cuda: bool,
    copied: list[int] | None,
    on_host: set[str] | None,
) -> None:
    trace = trace_of(launcher, name)
    assert trace.faults == ()
    assert copied is None or sorted(copy.num_bytes for copy in trace.copies) == copied
    assert on_host is None or set(names(trace, "cpu")) == on_host
    timed(launcher, name, has_cuda=has_cuda)


def test_what_is_logged_at_times_is_no_part_of_a_slow_step(launcher: Launcher) -> None:
    assert trace_of(launcher, "logs_at_times.py").syncs == ()


def test_a_backward_of_ones_own_has_its_own_lines(launcher: Launcher) -> None:
    line = line_of(SCRIPTS / "own_backward.py", "gradient.norm()")
    assert sync_places(trace_of(launcher, "own_backward.py")) == [("item", line)]


def test_copies_are_no_fault_and_what_is_left_on_the_host_is(launcher: Launcher) -> None:
    script = SCRIPTS / "crossings.py"
    trace = trace_of(launcher, "crossings.py")
    copies = {
        copy.location.line: (copy.source, copy.num_bytes, copy.is_pinned)
        for copy in trace.copies
        if copy.location
    }
    assert copies[line_of(script, "batch.copy_")] == ("cpu", 5 * 3 * 4 * 4, False)
    assert copies[line_of(script, "buffer[0] =")] == ("cpu", 4 * 4, False)
    assert copies[line_of(script, "batch.new_tensor")] == ("cpu", 4 * 4, False)
    assert copies[line_of(script, "pinned.copy_")] == ("cuda:0", 5 * 3 * 6 * 4, True)
    lines = enumerate(script.read_text().splitlines(), start=1)
    assert fault_lines(trace) == {number for number, line in lines if "# raises" in line}


def test_autocast_chooses_the_precisions_of_cuda(launcher: Launcher) -> None:
    inputs = {
        op.name: {spec.dtype for spec in op.inputs}
        for op in trace_of(launcher, "half_precision.py").ops
    }
    assert inputs["aten.addmm.default"] == {"bfloat16"}
    assert inputs["aten.native_layer_norm.default"] == {"float32"}
    assert inputs["aten._softmax.default"] == {"float32"}
    assert inputs["aten._scaled_dot_product_flash_attention_backward.default"] == {"bfloat16"}


def test_an_lstm_that_is_moved_is_one_call_of_cudnn(launcher: Launcher) -> None:
    trace = trace_of(launcher, "lstm_on_cpu.py", is_moved=True)
    assert names(trace).count("aten._cudnn_rnn.default") == 1
    assert names(trace, "cpu") == []
    assert trace.batch_size == 5


def test_lightning_loop_is_known_by_the_lines_of_its_module(launcher: Launcher) -> None:
    script = SCRIPTS / "lightning_loop.py"
    trace = trace_of(launcher, "lightning_loop.py")
    (call,) = trace.facts.model_calls
    (optimizer,) = trace.facts.optimizers
    (loader,) = trace.facts.loaders
    assert call.is_used_in_backward
    assert call.location.function == "training_step"
    assert [place.function for place in trace.stacks[call.stack]] == ["<module>", "training_step"]
    assert optimizer.location.line == line_of(script, "torch.optim")
    assert loader.location.line == line_of(script, "DataLoader(")
    assert {copy.via.partition(".")[0] for copy in trace.copies} == {"lightning"}
    assert not trace.facts.is_anomaly_checked
    # 16 rows of 20 floats, and 16 labels: a two-layer perceptron's step, not an epoch.
    assert (trace.batch_size, trace.h2d_bytes) == (16, 16 * 20 * 4 + 16 * 8)
    assert 15 <= len(trace.ops) <= 60


def test_trainer_of_a_library_is_told_from_the_script_that_calls_it(launcher: Launcher) -> None:
    trace = trace_of(launcher, "hf_trainer_loop.py")
    line = line_of(SCRIPTS / "hf_trainer_loop.py", ".train()")
    assert trace.syncs
    for sync in trace.syncs:
        assert sync.via.startswith("transformers.")
        assert sync.location.line == line
    (loader,) = trace.facts.loaders
    assert (loader.batch_size, loader.location.line) == (8, line)
    assert loader.dataset_location.function == loader.dataset == "RandomSentences"
    (call,) = trace.facts.model_calls
    assert call.num_samples == trace.batch_size == 8
    # Tokens, mask and labels; two layers of BERT, some 60 operators each at the least.
    assert trace.h2d_bytes == 8 * 12 * 8 + 8 * 12 * 8 + 8 * 8
    assert 200 <= len(trace.ops) <= 2_000


def test_text_of_the_scripts_own_files_comes_with_the_trace(launcher: Launcher) -> None:
    run = recorded(launcher, "validation.py")
    texts = {source.path: source.text for source in run.sources}
    assert texts[str(SCRIPTS / "validation.py")] == (SCRIPTS / "validation.py").read_text()
    named = {place.file for stack in run.trace.stacks for place in stack}
    assert named <= texts.keys()


# Scripts that capture their work in CUDA graphs.


def launch_phases(trace: StepTrace) -> list[Phase]:
    return [event.phase for event in trace.events if isinstance(event, GraphLaunch)]


def test_a_step_that_is_one_replay_is_predicted_as_one_launch(launcher: Launcher) -> None:
    trace = trace_of(launcher, "graph_step.py")
    eager = trace_of(launcher, "graph_step.py", "eager")
    (launch,) = [event for event in trace.events if isinstance(event, GraphLaunch)]
    assert launch.location is not None
    assert launch.location.line == line_of(SCRIPTS / "graph_step.py", "g.replay()")
    replayed = [op for op in trace.ops if op.is_replayed]
    assert {op.phase for op in replayed} == {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}
    # The inputs are copied eagerly in both.
    assert len(trace.ops) - len(replayed) == 2
    assert [op.name for op in trace.ops] == [op.name for op in eager.ops]
    assert trace.num_parameters == eager.num_parameters
    assert trace.syncs == trace.faults == eager.faults == ()

    (graphed,), (one_by_one,) = (
        predict_steps(each, (find_device("A100"),), reference_host()) for each in (trace, eager)
    )
    assert graphed.num_kernels == one_by_one.num_kernels
    assert graphed.estimate.value_ns < one_by_one.estimate.value_ns / 3
    assert graphed.estimate.value_ns >= graphed.device_busy_ns


def test_graphed_modules_are_a_launch_in_each_direction(launcher: Launcher) -> None:
    trace = trace_of(launcher, "graph_modules.py")
    assert trace.faults == ()
    assert launch_phases(trace) == [Phase.FORWARD] * 2 + [Phase.BACKWARD] * 2
    assert not any(op.is_replayed for op in trace.ops if op.phase is Phase.OPTIMIZER)
    products = [op for op in trace.ops if op.name in ("aten.addmm.default", "aten.mm.default")]
    assert {(op.is_replayed, op.inputs[0].dtype) for op in products} == {(True, "float16")}
    # One reads the sum, one whether the gradients are finite.
    assert [sync.kind for sync in trace.syncs] == ["item", "item"]


@pytest.mark.parametrize("name", ["graph_step.py", "graph_modules.py"])
def test_graphs_are_replayed_on_the_cpu(launcher: Launcher, name: str) -> None:
    run = timed(launcher, name, has_cuda=True, budget_s=0.1)
    assert len(run.measurement.samples_ns) > 2
    assert "graph-eager" in {caveat.code for caveat in run.caveats}
