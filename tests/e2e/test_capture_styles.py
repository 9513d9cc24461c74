"""Ways of writing a training loop that are easily recorded wrongly, each with what CUDA does."""

from __future__ import annotations

import pytest
from check_process import SCRIPTS, line_of

from breakeven.capture import Launcher, PlainRun, RunRequest, TracedRun, find_target
from breakeven.trace import StepTrace

pytestmark = pytest.mark.slow

_LIMIT_S = 60.0


def _trace(launcher: Launcher, name: str, *arguments: str, is_moved: bool = False) -> StepTrace:
    target = find_target(str(SCRIPTS / name), arguments)
    run = launcher.run(
        RunRequest(target=target, is_traced=True, time_limit_s=_LIMIT_S, is_moved=is_moved)
    )
    assert isinstance(run, TracedRun), run
    return run.trace


def _runs_plainly(launcher: Launcher, name: str, *, has_cuda: bool = False) -> bool:
    target = find_target(str(SCRIPTS / name))
    request = RunRequest(
        target=target, is_traced=False, time_limit_s=_LIMIT_S, budget_s=0.1, has_cuda=has_cuda
    )
    return isinstance(launcher.run(request), PlainRun)


def _fault_lines(trace: StepTrace) -> set[int]:
    return {fault.location.line for fault in trace.faults if fault.location}


def _sync_places(trace: StepTrace) -> list[tuple[str, int]]:
    return [(sync.kind, sync.location.line) for sync in trace.syncs if sync.location]


def _names_on_host(trace: StepTrace) -> set[str]:
    # A scalar that Python made is no work.
    return {op.name for op in trace.ops if op.device == "cpu"} - {"aten.lift_fresh.default"}


def test_filling_under_a_mask_and_one_hot_read_nothing_back(launcher: Launcher) -> None:
    trace = _trace(launcher, "masks_and_classes.py")
    assert trace.syncs == ()
    names = [op.name for op in trace.ops]
    assert "aten.masked_fill_.Scalar" in names
    assert "aten.scatter_.value" in names
    assert not any("index_put" in name or "aminmax" in name for name in names)


def test_packed_sequences_are_one_call_of_cudnn(launcher: Launcher) -> None:
    trace = _trace(launcher, "packed_sequences.py")
    assert trace.faults == ()
    assert [op.name for op in trace.ops].count("aten._cudnn_rnn.default") == 1
    assert trace.copies == ()


def test_lengths_of_sequences_belong_on_the_host(launcher: Launcher) -> None:
    trace = _trace(launcher, "packed_sequences.py", "device")
    assert _fault_lines(trace) == {line_of(SCRIPTS / "packed_sequences.py", "packed = ")}


def test_the_ctc_loss_reads_lengths_on_the_host(launcher: Launcher) -> None:
    on_host = _trace(launcher, "speech.py")
    assert on_host.faults == ()
    assert on_host.syncs == ()
    line = line_of(SCRIPTS / "speech.py", "ctc_loss(")
    assert _sync_places(_trace(launcher, "speech.py", "device")) == [("ctc_loss", line)] * 2


def test_types_of_torch_cuda_make_tensors_on_the_device(launcher: Launcher) -> None:
    trace = _trace(launcher, "legacy_types.py")
    assert trace.faults == ()
    assert _runs_plainly(launcher, "legacy_types.py")
    copied = sorted(copy.num_bytes for copy in trace.copies)
    assert copied == [8 * 2 * 4, 8 * 2 * 4, 8 * 6 * 4]


def test_checkpoints_are_read_to_where_they_are_wanted(launcher: Launcher) -> None:
    trace = _trace(launcher, "reads_checkpoint.py")
    assert trace.faults == ()
    assert trace.copies == ()
    assert _names_on_host(trace) == {"aten.add_.Tensor"}
    assert _runs_plainly(launcher, "reads_checkpoint.py")


def test_data_parallel_on_one_gpu_moves_the_batch(launcher: Launcher) -> None:
    trace = _trace(launcher, "one_gpu_data_parallel.py")
    assert [copy.num_bytes for copy in trace.copies] == [8 * 6 * 4]
    assert trace.faults == ()
    assert _runs_plainly(launcher, "one_gpu_data_parallel.py", has_cuda=True)


def test_torchscript_compiles_and_creates_on_the_device(launcher: Launcher) -> None:
    trace = _trace(launcher, "torchscript.py")
    assert trace.faults == ()
    assert _names_on_host(trace) == set()
    assert _runs_plainly(launcher, "torchscript.py")


def test_what_is_logged_at_times_is_no_part_of_a_slow_step(launcher: Launcher) -> None:
    assert _trace(launcher, "logs_at_times.py").syncs == ()


def test_a_backward_of_ones_own_has_its_own_lines(launcher: Launcher) -> None:
    trace = _trace(launcher, "own_backward.py")
    line = line_of(SCRIPTS / "own_backward.py", "gradient.norm()")
    assert _sync_places(trace) == [("item", line)]


def test_copies_between_host_and_device_are_no_fault(launcher: Launcher) -> None:
    script = SCRIPTS / "crossings.py"
    copies = {
        copy.location.line: (copy.source, copy.num_bytes, copy.is_pinned)
        for copy in _trace(launcher, "crossings.py").copies
        if copy.location
    }
    assert copies[line_of(script, "batch.copy_")] == ("cpu", 5 * 3 * 4 * 4, False)
    assert copies[line_of(script, "buffer[0] =")] == ("cpu", 4 * 4, False)
    assert copies[line_of(script, "batch.new_tensor")] == ("cpu", 4 * 4, False)
    assert copies[line_of(script, "pinned.copy_")] == ("cuda:0", 5 * 3 * 6 * 4, True)


def test_states_masks_and_values_left_on_the_host_are_found(launcher: Launcher) -> None:
    lines = (SCRIPTS / "crossings.py").read_text().splitlines()
    expected = {number for number, line in enumerate(lines, start=1) if "# raises" in line}
    assert _fault_lines(_trace(launcher, "crossings.py")) == expected


def test_autocast_chooses_the_precisions_of_cuda(launcher: Launcher) -> None:
    inputs = {
        op.name: {spec.dtype for spec in op.inputs}
        for op in _trace(launcher, "half_precision.py").ops
    }
    assert inputs["aten.addmm.default"] == {"bfloat16"}
    assert inputs["aten.native_layer_norm.default"] == {"float32"}
    assert inputs["aten._softmax.default"] == {"float32"}
    assert inputs["aten._scaled_dot_product_flash_attention_backward.default"] == {"bfloat16"}


def test_an_lstm_that_is_moved_is_one_call_of_cudnn(launcher: Launcher) -> None:
    trace = _trace(launcher, "lstm_on_cpu.py", is_moved=True)
    assert [op.name for op in trace.ops].count("aten._cudnn_rnn.default") == 1
    assert _names_on_host(trace) == set()
    assert trace.batch_size == 5


def _lines_with(name: str, text: str) -> list[int]:
    source = (SCRIPTS / name).read_text().splitlines()
    return [number for number, line in enumerate(source, 1) if text in line]


def test_lightning_loop_is_known_by_the_lines_of_its_module(launcher: Launcher) -> None:
    trace = _trace(launcher, "lightning_loop.py")
    (call,) = trace.facts.model_calls
    (optimizer,) = trace.facts.optimizers
    (loader,) = trace.facts.loaders
    assert call.is_used_in_backward
    assert call.location.function == "training_step"
    assert [place.function for place in trace.stacks[call.stack]] == ["<module>", "training_step"]
    assert [optimizer.location.line] == _lines_with("lightning_loop.py", "torch.optim")
    assert [loader.location.line] == _lines_with("lightning_loop.py", "DataLoader(")
    assert {copy.via.partition(".")[0] for copy in trace.copies} == {"lightning"}
    assert not trace.facts.is_anomaly_checked


def test_trainer_of_a_library_is_told_from_the_script_that_calls_it(launcher: Launcher) -> None:
    trace = _trace(launcher, "hf_trainer_loop.py")
    (line,) = _lines_with("hf_trainer_loop.py", ".train()")
    assert trace.syncs
    for sync in trace.syncs:
        assert sync.via.startswith("transformers.")
        assert sync.location.line == line
    (loader,) = trace.facts.loaders
    assert (loader.batch_size, loader.location.line) == (8, line)
    assert loader.dataset_location.function == loader.dataset == "RandomSentences"
    (call,) = trace.facts.model_calls
    assert call.num_samples == 8


def test_text_of_the_scripts_own_files_comes_with_the_trace(launcher: Launcher) -> None:
    target = find_target(str(SCRIPTS / "validation.py"))
    run = launcher.run(RunRequest(target=target, is_traced=True, time_limit_s=_LIMIT_S))
    assert isinstance(run, TracedRun), run
    texts = {source.path: source.text for source in run.sources}
    assert texts[target.label] == (SCRIPTS / "validation.py").read_text()
    named = {place.file for stack in run.trace.stacks for place in stack}
    assert named <= texts.keys()
