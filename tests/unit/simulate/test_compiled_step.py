"""A recorded step as ``torch.compile`` would make it."""

from __future__ import annotations

import msgspec
import pytest

from breakeven.cost import reference_host
from breakeven.device import find_device
from breakeven.simulate import (
    CompiledStep,
    CompileMode,
    build_program,
    compile_mode_of,
    compiled_step,
    may_change_layout,
    predict_steps,
)
from breakeven.trace import (
    Call,
    Copy,
    GraphLaunch,
    Location,
    Op,
    OptimizerFacts,
    Phase,
    RunFacts,
    StepTrace,
    Sync,
    TensorSpec,
)
from factories.steps import model_call

HOST = reference_host()
GPU = find_device("A100 SXM4 40GB")


def spec(storage: int, *shape: int) -> TensorSpec:
    return TensorSpec(shape=shape, dtype="float32", device="cuda:0", storage=storage)


def chain(length: int, *shape: int, first: int = 0, **fields: object) -> list[Op]:
    plain = [
        Op(
            name="aten.mul.Tensor",
            inputs=(spec(number, *shape),),
            outputs=(spec(number + 1, *shape),),
        )
        for number in range(first, first + length)
    ]
    return [msgspec.structs.replace(op, **fields) for op in plain]


def step(*events: object, **fields: object) -> StepTrace:
    return StepTrace(events=events, **fields)  # pyright: ignore[reportArgumentType]


def compiled(trace: StepTrace, mode: CompileMode = CompileMode.DEFAULT) -> CompiledStep:
    return compiled_step(build_program(trace), mode)


def time_ns(trace: StepTrace, mode: CompileMode | None) -> float:
    program = build_program(trace)
    if mode is not None:
        program = program.edited(compiled_step(program, mode).edit)
    (found,) = predict_steps(program, [GPU], HOST)
    return found.estimate.value_ns


def test_a_memory_bound_chain_is_as_much_faster_as_it_moves_less() -> None:
    trace = step(*chain(10, 1 << 26))
    speedup = time_ns(trace, None) / time_ns(trace, CompileMode.DEFAULT)

    # A tenth of the traffic; a generated kernel is slower than torch's own.
    assert 5.0 < speedup < 9.0


def test_a_launch_bound_step_gains_most_from_a_graph() -> None:
    events = [
        op
        for number in range(40)
        for op in (
            Op(
                name="aten.mm.default",
                inputs=(spec(2 * number, 32, 32), spec(900, 32, 32)),
                outputs=(spec(2 * number + 1, 32, 32),),
            ),
            *chain(1, 32, 32, first=2 * number + 1),
        )
    ]
    trace = step(*events)
    eager, default, graph = (time_ns(trace, m) for m in (None, *list(CompileMode)[:2]))

    assert graph < 0.7 * default < 0.9 * eager


def test_a_wait_within_the_model_breaks_the_graph() -> None:
    wait = Sync(kind="item", location=Location(file="train.py", line=7))
    trace = step(*chain(2, 64), wait, *chain(2, 64, first=2))
    found = compiled(trace)

    assert found.num_graphs == 2
    assert [(at.kind, at.location and at.location.line) for at in found.breaks] == [("item", 7)]
    assert found.edit.apply(trace).syncs == (wait,)


def test_the_loss_and_the_update_stay_as_they_are() -> None:
    call = model_call(num_events=2)
    events = (
        *chain(2, 64, module="Net.act"),
        *chain(2, 64, first=2, module="MSELoss"),
        *chain(2, 64, first=4, module="MSELoss", phase=Phase.BACKWARD),
        *chain(2, 64, first=6, module="Net.act", phase=Phase.BACKWARD),
        *chain(2, 64, first=8, phase=Phase.OPTIMIZER),
    )
    trace = step(*events, facts=RunFacts(model_calls=(call,)))
    found = compiled(trace)
    kept = [op.name for op in found.edit.apply(trace).ops]

    assert (found.num_graphs, found.num_kernels, found.num_ops) == (2, 2, 4)
    # However few operators there are, Dynamo and Inductor have to start.
    assert 1e9 < found.compile_ns < 10e9
    assert kept.count("aten.mul.Tensor") == 6
    assert kept.count("compiled.fused.default") == 2


def test_a_cuda_graph_is_launched_for_each_compiled_graph() -> None:
    trace = step(*chain(3, 64), *chain(3, 64, first=3, phase=Phase.BACKWARD))
    changed = compiled(trace, CompileMode.REDUCE_OVERHEAD).edit.apply(trace)

    assert sum(isinstance(event, GraphLaunch) for event in changed.events) == 2
    assert all(op.is_replayed for op in changed.ops if op.name == "compiled.fused.default")


def test_a_batch_that_arrives_is_copied_to_where_the_graph_reads_it() -> None:
    batch = Copy(source="cpu", destination="cuda:0", num_bytes=4096, phase=Phase.DATA)
    trace = step(batch, *chain(3, 1024))
    copies, *_ = (
        op
        for op in compiled(trace, CompileMode.REDUCE_OVERHEAD).edit.apply(trace).ops
        if not op.is_replayed and op.outputs
    )

    assert [tensor.num_bytes for tensor in (*copies.inputs, *copies.outputs)] == [4096, 4096]
    eager = compiled(trace).edit.apply(trace).ops
    assert len([op for op in eager if op.outputs]) == 1


@pytest.mark.parametrize(
    ("argument", "mode"),
    [
        ("Net", CompileMode.DEFAULT),
        ("Net, mode=reduce-overhead", CompileMode.REDUCE_OVERHEAD),
        ("Net, mode=max-autotune", CompileMode.MAX_AUTOTUNE),
        ("Net, mode=max-autotune-no-cudagraphs", CompileMode.DEFAULT),
    ],
)
def test_the_mode_is_that_which_the_script_asks_for(argument: str, mode: CompileMode) -> None:
    call = Call(name="torch.compile", location=None, count=1, argument=argument)

    assert compile_mode_of(step(facts=RunFacts(calls=(call,)))) is mode
    assert compile_mode_of(step()) is None


def convolution(number: int, *weight: int, groups: int = 1) -> Op:
    """Return one of images of 28 pixels, of the storage of a number; its result is the next."""
    num_out, num_in, *_ = weight
    return Op(
        name="aten.convolution.default",
        inputs=(spec(number, 8, groups * num_in, 28, 28), spec(number + 20, *weight)),
        outputs=(spec(number + 1, 8, num_out, 28, 28),),
        attributes={"groups": groups, "stride": [1, 1]},
    )


def test_plain_convolutions_are_brought_into_channels_last_order() -> None:
    plain, grouped = convolution(0, 128, 128, 3, 3), convolution(0, 128, 4, 3, 3, groups=32)
    # A convolution over channels, as channel attention has, is no image's.
    over_channels = Op(
        name="aten.convolution.default",
        inputs=(spec(10, 8, 1, 128), spec(11, 1, 1, 3)),
        outputs=(spec(12, 8, 1, 128),),
        attributes={"groups": 1, "stride": [1]},
    )

    assert _layouts(plain) == {"channels_last"}
    assert _layouts(grouped) == {"contiguous"}
    assert _layouts(plain, over_channels) == {"channels_last"}


def _layouts(*ops: Op) -> set[str]:
    trace = step(*ops)
    call = next(o for o in compiled(trace).edit.apply(trace).ops if "convolution" in o.name)
    return {tensor.layout for tensor in (*call.inputs, *call.outputs)}


def test_what_narrows_in_training_keeps_the_order_however_few_its_channels() -> None:
    wide, narrowing = convolution(1, 128, 16, 3, 3), convolution(0, 16, 64, 3, 3)
    last = msgspec.structs.replace(wide, phase=Phase.BACKWARD)

    assert _layouts(wide, narrowing) == {"channels_last"}
    assert _layouts(wide, narrowing, last) == {"contiguous"}


def test_issuing_compiled_code_slows_no_kernel_down() -> None:
    """Of an eager step, a share of what overlaps is lost; a compiled one is as long as its kernels.

    A launch's latency and the gap before each kernel are all that comes on top.
    """
    product = Op(
        name="aten.mm.default",
        inputs=(spec(0, 8192, 8192), spec(1, 8192, 8192)),
        outputs=(spec(2, 8192, 8192),),
    )
    trace = step(*[product] * 4)
    program = build_program(trace)
    (eager,) = predict_steps(program, [GPU], HOST)
    (found,) = predict_steps(program.edited(compiled(trace).edit), [GPU], HOST)

    assert eager.estimate.value_ns > eager.device_busy_ns + 10_000
    assert found.estimate.value_ns < found.device_busy_ns + 10_000


@pytest.mark.parametrize(
    ("framework", "is_after"),
    [
        ("torch 2.0 2023-03", False),
        ("torch 2.1 nightly 2023-03/04", False),
        ("torch 2.0 nightly 2022-11/12 (precision inferred)", False),
        ("torch 2.1 nightly 2023-07", True),
        ("torch 2.1.2", True),
        ("torch 2.4.0 cu124", True),
        ("", True),
    ],
)
def test_layouts_are_changed_since_the_summer_of_2023(framework: str, is_after: bool) -> None:
    assert may_change_layout(framework) is is_after


@pytest.mark.parametrize(
    ("arguments", "mode"),
    [
        (("Adam.step, mode=reduce-overhead",), None),
        (("Adam.step", "Net, mode=reduce-overhead"), CompileMode.REDUCE_OVERHEAD),
        (("Trainer.step",), CompileMode.DEFAULT),
    ],
)
def test_a_compiled_step_of_an_optimizer_counts_as_eager(
    arguments: tuple[str, ...], mode: CompileMode | None
) -> None:
    facts = RunFacts(
        calls=tuple(
            Call(name="torch.compile", location=None, count=1, argument=a) for a in arguments
        ),
        optimizers=(OptimizerFacts(name="AdamW", location=None, num_tensors=2),),
    )
    trace = step(*chain(2, 64, first=4), facts=facts)
    compiled = msgspec.structs.replace(trace.settings, is_compiled=True)
    assert compile_mode_of(msgspec.structs.replace(trace, settings=compiled)) is mode
