"""The step that ``torch.compile``, or one CUDA graph, would make of a recorded step.

This does not run Inductor: its scheduler needs Triton and the properties of a present device. The
recorded operators are the inputs of its decompositions, and their storages show their dependencies,
so the kernels that it would generate follow without a device.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from breakeven.cost import CALL, FUSED, compiled_name, fuse
from breakeven.simulate.program import Edit, Program
from breakeven.trace import (
    Call,
    Copy,
    Event,
    GraphLaunch,
    Location,
    Op,
    Phase,
    StepTrace,
    Sync,
    TensorSpec,
)


class CompileMode(StrEnum):
    """Modes of ``torch.compile``."""

    DEFAULT = "default"
    REDUCE_OVERHEAD = "reduce-overhead"
    MAX_AUTOTUNE = "max-autotune"

    @property
    def has_graphs(self) -> bool:
        """Return whether compiled code is replayed from CUDA graphs."""
        return self is not CompileMode.DEFAULT


def compile_mode_of(trace: StepTrace) -> CompileMode | None:
    """Return the mode in which a script compiles its model; None if it does not."""
    calls = [c for c in trace.facts.calls if c.name in ("torch.compile", "Module.compile")]
    # A compiled step of an optimizer counts as eager. AdamW's is defined by Adam.
    updates = {f"{name}.step" for name in ("Adam", *(one.name for one in trace.facts.optimizers))}
    of_models = [call for call in calls if call.argument.partition(",")[0] not in updates]
    if of_models:
        return _mode_of(of_models[0])
    # A library may compile the model without a recorded call.
    return CompileMode.DEFAULT if trace.settings.is_compiled and not calls else None


def _mode_of(call: Call) -> CompileMode:
    """Return the mode of a call; a mode without CUDA graphs counts as the default."""
    modes = (mode for mode in CompileMode if f"mode={mode}" in call.argument)
    asked = next(modes, CompileMode.DEFAULT)
    return CompileMode.DEFAULT if "no-cudagraphs" in call.argument else asked


# Source: pytorch PR 99773, in Inductor since June 2023; torch 2.1 is the first release.
_CHANGES_LAYOUT_SINCE = ((2, 1), (2023, 6))


def may_change_layout(framework: str) -> bool:
    """Return whether Inductor converts convolutions to channels-last order if that pays.

    Args:
        framework: As tables write it: ``torch 2.1 nightly 2023-03``. Other names than early
            versions of torch 2 count as later ones.
    """
    found = re.match(r"torch (\d+)\.(\d+)[\w.]*(?: nightly (\d+)-(\d+))?", framework)
    if found is None:
        return True
    major, minor, year, month = (int(part) if part else None for part in found.groups())
    version, date = _CHANGES_LAYOUT_SINCE
    if (major, minor) == version and year is not None:
        return (year, month) >= date
    return (major, minor) >= version


class GraphBreak(msgspec.Struct, frozen=True, kw_only=True):
    """A place where Dynamo ends a graph, since the host needs a value.

    Args:
        kind: Kind of the `Sync`.
        location: The user's line, if known.
    """

    kind: str
    location: Location | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledStep:
    """The result of ``torch.compile`` on a step.

    Args:
        edit: The change of the recorded step.
        mode: Mode of ``torch.compile``.
        num_graphs: Compiled graphs: forward and backward count separately.
        num_ops: Operators in them.
        num_kernels: Generated kernels.
        breaks: Places where graphs end within the forward pass.
        compile_ns: Compile time without a cache.
    """

    edit: Edit
    mode: CompileMode
    num_graphs: int
    num_ops: int
    num_kernels: int
    breaks: tuple[GraphBreak, ...]
    compile_ns: float


def compiled_step(
    program: Program, mode: CompileMode, *, may_change_layout: bool = True
) -> CompiledStep:
    """Return the result of ``torch.compile`` of the model on a step.

    Args:
        program: The step as it was recorded.
        mode: Mode of ``torch.compile``.
        may_change_layout: Result of `may_change_layout` for the software.
    """
    trace = program.trace

    def op_at(position: int) -> Op:
        op = trace.events[position]
        assert isinstance(op, Op)
        return op

    regions, breaks = _graphs_of(trace)
    is_channels_last = may_change_layout and _takes_channels_last(trace, regions)
    step = fuse(trace.events, program.lowerings, regions, is_channels_last=is_channels_last)
    replaced: dict[int, tuple[Event, ...]] = {
        position: () for position, region in enumerate(regions) if region >= 0
    }
    for position in step.library_calls:
        replaced[position] = (_called(op_at(position), is_channels_last=is_channels_last),)
    for kernel in step.kernels:
        last = op_at(kernel.positions[-1])
        attributes = {"numel": kernel.numel, "rows": kernel.rows, "keeps_row": kernel.keeps_row}
        generated = Op(
            name=FUSED, inputs=kernel.reads, outputs=kernel.writes,
            attributes=attributes | {"flop": kernel.flop}, phase=last.phase, device=last.device,
            location=last.location, module=last.module, stack=last.stack,
        )  # fmt: skip
        replaced[kernel.positions[-1]] += (generated,)
    for position, events in replaced.items() if mode.has_graphs else ():
        replaced[position] = tuple(msgspec.structs.replace(e, is_replayed=True) for e in events)
    is_training = any(region % 2 for region in regions if region >= 0)
    firsts: dict[int, int] = {}
    for position, region in enumerate(regions):
        if region >= 0:
            firsts.setdefault(region, position)
    for number, position in enumerate(firsts.values()):
        first = op_at(position)
        # The call that enters a graph before its first operator: its guards and its wrapper.
        attributes = {"is_training": is_training}
        call = msgspec.structs.replace(
            first, name=CALL, inputs=(), outputs=(), attributes=attributes
        )
        entered: tuple[Event, ...] = (call,)
        if mode.has_graphs:
            copies = _input_copies(trace, first) if number == 0 else ()
            launch = GraphLaunch(phase=first.phase, location=first.location, stack=first.stack)
            entered = (call, *copies, launch)
        replaced[position] = (*entered, *replaced[position])
    num_ops = sum(region >= 0 for region in regions)
    return CompiledStep(
        edit=Edit(replaced=replaced),
        mode=mode,
        num_graphs=len(firsts),
        num_ops=num_ops,
        num_kernels=len(step.kernels),
        breaks=breaks,
        compile_ns=_COMPILE_NS + _COMPILE_NS_PER_OP * num_ops if num_ops else 0.0,
    )


# Importing Dynamo and Inductor, and their first call: 3.1 s of a process' own time on an AMD EPYC
# with torch 2.13, for one linear layer and its backward (without the time of the C++ compiler,
# which a GPU does not need).
_COMPILE_NS = 3e9
# Tracing, Inductor and Triton, for each operator of forward and backward, without a cache.
# With an A100 of 2023 (torch 2.1 nightly, autocast; pytorch issue 96191, turn 2) HRNet-W18 took
# 245 s for the 5,170 operators recorded here; ResNet-50 took 28 s (pytorch/benchmark PR 1547) to
# twice that for 731.
_COMPILE_NS_PER_OP = 50e6


def _input_copies(trace: StepTrace, first: Op) -> list[Op]:
    """Return the copies of a batch into a CUDA graph's memory: one for each copy to the device."""
    copies: list[Op] = []
    for copy in trace.copies:
        if copy.is_to_device and copy.num_bytes:
            spec = TensorSpec(shape=(copy.num_bytes,), dtype="uint8", device=first.device)
            attributes = {"numel": spec.numel, "rows": 0, "keeps_row": False, "flop": 0.0}
            copies.append(
                msgspec.structs.replace(
                    first, name=FUSED, inputs=(spec,), outputs=(spec,), attributes=attributes
                )
            )
    return copies


def _graphs_of(trace: StepTrace) -> tuple[tuple[int, ...], tuple[GraphBreak, ...]]:
    """Return the graph of each event, -1 for none, and the places where graphs end early.

    Graphs have even numbers for a forward pass, and the next odd one for its backward pass.

    Compiled are the operators of a model's call, and those of its modules in the backward pass. If
    the calls of models are unknown, both whole passes are.
    """
    calls = trace.facts.model_calls
    inside = [not calls] * len(trace.events)
    starts: set[int] = set()
    for call in calls:
        starts.add(call.first_event)
        for position in range(call.first_event, call.first_event + call.num_events):
            inside[position] = True
    models = {call.model for call in calls}
    regions: list[int] = []
    breaks: dict[tuple[str, Location | None], GraphBreak] = {}
    current = 0
    for position, event in enumerate(trace.events):
        current += position in starts
        if isinstance(event, Op) and not event.is_on_host and not event.is_replayed:
            is_models = not calls or event.module.partition(".")[0] in models
            if event.phase is Phase.FORWARD and inside[position]:
                regions.append(2 * current)
                continue
            if event.phase is Phase.BACKWARD and is_models:
                # One graph for each call: operators are not recorded by call.
                regions.append(2 * current + 1)
                continue
        elif isinstance(event, Sync) and event.phase is Phase.FORWARD and inside[position]:
            # Copies stay within a graph, such as that of a batch which the model moves itself.
            current += 1
            found = GraphBreak(kind=event.kind, location=event.location)
            breaks.setdefault((event.kind, event.location), found)
        regions.append(-1)
    return tuple(regions), tuple(breaks.values())


def _called(op: Op, *, is_channels_last: bool) -> Op:
    def placed(specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
        return tuple(
            msgspec.structs.replace(spec, layout="channels_last") if len(spec.shape) == 4 else spec
            for spec in specs
        )

    inputs, outputs = op.inputs, op.outputs
    if op.name.startswith("aten.convolution"):
        if "backward" not in op.name:
            inputs = inputs[:2]
        if is_channels_last:
            inputs, outputs = placed(inputs), placed(outputs)
    return msgspec.structs.replace(op, name=compiled_name(op.name), inputs=inputs, outputs=outputs)


# Time of a convolution in channels-last order over one in the other, by kind.
# Source of this and the rules below: torch/_inductor/graph.py, decide_layout_opt.
_GROUPED, _DEFAULT, _NARROWING, _SMALL = 1.358, 0.823, 0.725, 0.783
_MOST_NODES_PER_CONVOLUTION = 300
_SMALL_CHANNELS = 64


def _takes_channels_last(trace: StepTrace, regions: Sequence[int]) -> bool:
    """Return whether Inductor converts the convolutions' tensors to channels-last order."""
    compiled = [
        event
        for event, region in zip(trace.events, regions, strict=True)
        if region >= 0 and isinstance(event, Op)
    ]
    forward = [op for op in compiled if op.phase is Phase.FORWARD]
    convolutions = [op for op in forward if op.name.startswith("aten.convolution.")]
    if not convolutions or len(forward) >= _MOST_NODES_PER_CONVOLUTION * len(convolutions):
        return False
    flop: list[float] = []
    ratios: list[float] = []
    for op in convolutions:
        num_out, num_in, *window = op.inputs[1].shape
        is_narrowing = 2 * num_out <= num_in and window[0] > 1
        ratio = _NARROWING if is_narrowing else _DEFAULT
        if max(num_out, num_in) <= _SMALL_CHANNELS:
            ratio = _SMALL
        if int(op.attributes.get("groups", 1) or 1) > 1 and num_in > 1:
            ratio = _GROUPED
        ratios.append(ratio)
        flop.append(op.outputs[0].numel * op.inputs[1].numel / num_out)
        # A training step keeps its layout if a single convolution is of these kinds.
        if len(forward) < len(compiled) and (ratio == _GROUPED or is_narrowing):
            return False
    if len(forward) < len(compiled):
        return any(max(op.inputs[1].shape[:2]) > _SMALL_CHANNELS for op in convolutions)
    return sum(f * ratio for f, ratio in zip(flop, ratios, strict=True)) <= sum(flop)


# Classes of torch.optim that take capturable=True (torch 2.13), and SGD, which has no step count.
_CAPTURABLE = frozenset({
    "ASGD", "Adadelta", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD",
})  # fmt: skip


def captured_step(trace: StepTrace, fused: Edit | None = None) -> Edit | str:
    """Return the change that lets one CUDA graph replay a step, or why no graph can.

    The optimizer counts its steps on the device. Reads before a model's call or after the update
    stay outside of the graph. So do copies to the device: if the host reads nothing, its data
    depends on no result, and may be copied before.

    Args:
        trace: The step.
        fused: Its update as one fused kernel, if that is possible.
    """
    if trace.facts.num_shapes > 1:
        return "its shapes differ from step to step"
    ops = {index: event for index, event in enumerate(trace.events) if isinstance(event, Op)}
    on_device = [index for index, op in ops.items() if not op.is_on_host]
    updates = [index for index in on_device if ops[index].phase is Phase.OPTIMIZER]
    calls = (call for call in trace.facts.model_calls if call.is_used_in_backward)
    first = next((call.first_event for call in calls), min(on_device, default=0))
    num_reads = sum(
        isinstance(event, Sync) or (isinstance(event, Copy) and not event.is_to_device)
        for event in trace.events[first : max(updates or on_device, default=0)]
    )
    if num_reads:
        return f"the host reads or waits for the GPU in the middle of it ({num_reads:,}× per step)"
    on_host = {i: op for i, op in ops.items() if op.is_on_host and op.phase is Phase.OPTIMIZER}
    if any(spec.numel > 1 for op in on_host.values() for spec in op.inputs):
        return "part of its update runs on the CPU"
    for optimizer in trace.facts.optimizers if on_host else ():
        if not optimizer.is_from_torch or optimizer.name not in _CAPTURABLE:
            return f"{optimizer.name} counts its steps on the CPU"
    moved = {i: (msgspec.structs.replace(op, device="cuda:0"),) for i, op in on_host.items()}
    return Edit(replaced=moved).then(fused or Edit())
