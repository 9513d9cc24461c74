from __future__ import annotations

from breakeven.trace import Copy, Op, Phase, StepTrace, Sync, TensorSpec, moved_to_device
from made_up_steps import at, tensor

WEIGHT, BATCH, TARGET, HIDDEN, COUNTER, LOSS, READ_BACK = range(7)


def host_op(
    name: str,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...] = (),
    phase: Phase = Phase.FORWARD,
) -> Op:
    return Op(name=name, inputs=inputs, outputs=outputs, phase=phase, device="cpu", location=at(5))


def on_device(op: Op) -> Op:
    def moved(tensors: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(tensor(*t.shape, storage=t.storage, device="cuda:0") for t in tensors)

    return Op(
        name=op.name, inputs=moved(op.inputs), outputs=moved(op.outputs), phase=op.phase,
        device="cuda:0", location=op.location,
    )  # fmt: skip


MATMUL = host_op(
    "aten.mm.default",
    (tensor(4, 3, storage=BATCH), tensor(3, 2, storage=WEIGHT)),
    (tensor(4, 2, storage=HIDDEN),),
)


def test_operators_move_and_the_batch_is_copied_before_its_first_use() -> None:
    trace = StepTrace(events=(MATMUL, MATMUL))
    moved = moved_to_device(trace, input_storages=frozenset({BATCH}))

    copy = Copy(source="cpu", destination="cuda:0", num_bytes=48, location=at(5), storage=BATCH)
    assert copy.is_blocking
    assert moved.events == (copy, on_device(MATMUL), on_device(MATMUL))
    assert moved.uses_device


def test_what_the_data_phase_makes_stays_and_is_copied() -> None:
    collate = host_op(
        "aten.stack.default", (tensor(3),), (tensor(4, 3, storage=BATCH),), Phase.DATA
    )
    moved = moved_to_device(StepTrace(events=(collate, MATMUL)), input_storages=frozenset())

    assert moved.events[0] == collate
    assert isinstance(moved.events[1], Copy)
    assert moved.events[2] == on_device(MATMUL)


def test_only_the_slice_that_is_used_is_copied() -> None:
    rows = host_op(
        "aten.slice.Tensor", (tensor(100, 3, storage=BATCH),), (tensor(4, 3, storage=BATCH),)
    )
    moved = moved_to_device(StepTrace(events=(rows, MATMUL)), input_storages=frozenset({BATCH}))

    assert moved.h2d_bytes == 4 * 3 * 4


def test_weights_are_not_copied() -> None:
    moved = moved_to_device(StepTrace(events=(MATMUL,)), input_storages=frozenset({TARGET}))
    assert not moved.copies


def test_reading_a_value_becomes_a_sync() -> None:
    read = host_op("aten._local_scalar_dense.default", (tensor(storage=LOSS),))
    moved = moved_to_device(StepTrace(events=(MATMUL, read)), input_storages=frozenset())

    assert moved.events[-1] == Sync(kind="item", num_bytes=4, location=at(5))


def test_step_counters_of_the_optimizer_stay_on_the_host() -> None:
    counter = tensor(storage=COUNTER)
    count = host_op("aten.add_.Tensor", (counter,), (counter,), Phase.OPTIMIZER)
    read = host_op("aten._local_scalar_dense.default", (counter,), (), Phase.OPTIMIZER)
    weight = tensor(3, 2, storage=WEIGHT)
    update = host_op("aten.addcdiv_.default", (weight, weight), (weight,), Phase.OPTIMIZER)
    moved = moved_to_device(StepTrace(events=(count, read, update)), input_storages=frozenset())

    assert moved.events == (count, read, on_device(update))
    assert not moved.syncs


def test_a_value_that_the_optimizer_computes_is_read_from_the_device() -> None:
    norm = host_op(
        "aten.linalg_vector_norm.default",
        (tensor(3, 2, storage=WEIGHT),),
        (tensor(storage=LOSS),),
        Phase.OPTIMIZER,
    )
    read = host_op("aten._local_scalar_dense.default", (tensor(storage=LOSS),), (), Phase.OPTIMIZER)
    moved = moved_to_device(StepTrace(events=(norm, read)), input_storages=frozenset())

    assert [sync.kind for sync in moved.syncs] == ["item"]


def test_masks_read_a_size_back() -> None:
    mask = tensor(4, dtype="bool")
    select = host_op("aten.index.Tensor", (tensor(4), mask), (tensor(2),))
    fill = host_op("aten.index_put_.default", (tensor(4), mask, tensor()), (tensor(4),))
    put = host_op("aten.index_put_.default", (tensor(4), mask, tensor(2)), (tensor(4),))
    gather = host_op("aten.index.Tensor", (tensor(4), tensor(2, dtype="int64")), (tensor(2),))

    def syncs(op: Op) -> list[str]:
        moved = moved_to_device(StepTrace(events=(op,)), input_storages=frozenset())
        return [sync.kind for sync in moved.syncs]

    assert syncs(select) == ["nonzero"]
    assert syncs(put) == ["nonzero"]
    assert syncs(fill) == []  # one value under a mask needs no size
    assert syncs(gather) == []


def test_the_report_is_told() -> None:
    trace = StepTrace(events=(MATMUL,))
    once = moved_to_device(trace, input_storages=frozenset())
    twice = moved_to_device(once, input_storages=frozenset())

    assert [caveat.code for caveat in twice.caveats] == ["never-on-device"]


def test_peak_memory_counts_what_is_alive_at_once() -> None:
    def made(storage: int, *inputs: int) -> Op:
        return host_op(
            "aten.relu.default",
            tuple(tensor(10, storage=i) for i in inputs),
            (tensor(10, storage=storage),),
        )

    # 0 outlives the step; 1 dies at its last use, in the operator that makes 2.
    trace = StepTrace(events=(made(1, 0), made(2, 1), made(3, 2)))
    assert moved_to_device(trace, input_storages=frozenset()).peak_memory_bytes == 3 * 40
