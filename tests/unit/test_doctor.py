from __future__ import annotations

import inspect
import re

import pytest

from breakeven.cost import reference_host
from breakeven.doctor import Finding, all_rules, diagnose
from breakeven.trace import (
    NEVER_ON_DEVICE,
    Copy,
    DeviceFault,
    Event,
    HostWork,
    Op,
    Phase,
    StepTrace,
    Sync,
)
from made_up_steps import GPU, HOST, MadeUpCosts, at, op, tensor

BATCH, NOISE, INDEX = 1, 2, 3


def findings(*events: Event, costs: MadeUpCosts | None = None) -> tuple[Finding, ...]:
    return diagnose(StepTrace(events=events), GPU, HOST, costs=costs or MadeUpCosts())


def found(code: str, *events: Event, costs: MadeUpCosts | None = None) -> Finding:
    (finding,) = [f for f in findings(*events, costs=costs) if f.code == code]
    return finding


def sync(kind: str, line: int = 7) -> Sync:
    return Sync(kind=kind, num_bytes=4, location=at(line))


def copy(storage: int, num_bytes: int = 100, *, line: int = 3, is_pinned: bool = False) -> Copy:
    return Copy(
        source="cpu",
        destination="cuda:0",
        num_bytes=num_bytes,
        is_pinned=is_pinned,
        non_blocking=is_pinned,
        location=at(line),
        storage=storage,
    )


def test_a_healthy_step_has_no_findings() -> None:
    healthy = (copy(BATCH, is_pinned=True), op(100, host_ns=10), op(200, host_ns=10))
    assert findings(*healthy) == ()


@pytest.mark.parametrize(
    ("kind", "code", "cause"),
    [
        ("item", "SYNC001", "SYNC_ITEM"),
        ("print", "SYNC001", "SYNC_ITEM"),
        ("equal", "SYNC001", "SYNC_ITEM"),
        ("synchronize", "SYNC002", "SYNC_EXPLICIT"),
        ("empty_cache", "SYNC002", "SYNC_EXPLICIT"),
        ("nonzero", "SYNC003", "SYNC_SHAPE"),
        ("mask", "SYNC003", "SYNC_SHAPE"),
        ("unique", "SYNC003", "SYNC_SHAPE"),
        ("cpu", "SYNC004", "SYNC_METRICS"),
        ("tolist", "SYNC004", "SYNC_METRICS"),
    ],
)
def test_each_wait_belongs_to_one_rule(kind: str, code: str, cause: str) -> None:
    (finding,) = findings(op(100, host_ns=90), sync(kind))

    assert (finding.code, finding.cause) == (code, cause)
    assert (finding.file, finding.line) == ("train.py", 7)


def test_gain_and_share_of_a_sync_are_simulated() -> None:
    # With the sync, host and device take turns: 90 + 100. Without it the device's 100 remain.
    (finding,) = findings(op(100, host_ns=90), sync("item"))

    assert finding.gain_fraction == pytest.approx(90 / 190)
    # The host waits from 90 to 190.
    assert finding.share_fraction == pytest.approx(100 / 190)
    assert finding.title == "the host reads a value from the GPU in every step"


def test_waits_are_grouped_by_line() -> None:
    events = (op(100), sync("item", 7), op(100), sync("item", 9), op(100), sync("item", 7))
    by_line = {f.line: f for f in findings(*events) if f.code == "SYNC001"}

    assert set(by_line) == {7, 9}
    assert by_line[7].title.endswith("2 times in every step")


def test_removing_one_of_two_waits_may_gain_nothing() -> None:
    # The second sync follows at once and waits just as long.
    (first, second) = findings(op(100, host_ns=90), sync("item", 7), sync("print", 8))

    assert (first.gain_fraction, second.gain_fraction) == (0, 0)


def test_a_wait_without_a_line_is_still_told() -> None:
    (finding,) = findings(op(100), Sync(kind="item"))
    assert (finding.file, finding.line) == (None, None)


def test_pageable_copy_of_the_batch() -> None:
    # Pinned, it keeps the device busy for 99 + 200, one of its bytes standing for the call.
    finding = found("COPY001", copy(BATCH), op(200, host_ns=10))

    assert (finding.cause, finding.line) == ("H2D_PAGEABLE", 3)
    # Of the step's 310 the host waits 200 for the kernel and 100 for the copy.
    assert finding.share_fraction == pytest.approx(300 / 310)
    assert finding.gain_fraction == pytest.approx(11 / 310)


def test_pinned_copy_that_blocks_is_told_too() -> None:
    blocking = Copy(source="cpu", destination="cuda:0", num_bytes=100, is_pinned=True)
    assert found("COPY001", blocking, op(10)).file is None


def test_copy_back_to_the_host_is_no_batch() -> None:
    back = Copy(source="cuda:0", destination="cpu", num_bytes=100)
    assert findings(op(100, host_ns=1), back) == ()


def noise(storage: int = NOISE, host_ns: float = 50) -> Op:
    made = (tensor(25, storage=storage),)
    return op(30, host_ns=host_ns, name="aten.randn.default", outputs=made, device="cpu", line=2)


def test_tensor_made_on_the_host() -> None:
    scaled = op(
        5,
        host_ns=20,
        device="cpu",
        inputs=(tensor(25, storage=NOISE),),
        outputs=(tensor(25, storage=INDEX),),
    )
    events = (noise(), scaled, copy(INDEX), op(200, host_ns=300))
    finding = found("COPY002", *events)

    assert (finding.cause, finding.line) == ("H2D_CREATE", 3)
    assert "COPY001" not in {f.code for f in findings(*events)}
    # Host: 50 + 20, wait until the kernel of the step before ends at 200, copy 100, issue 300.
    # Made on the device, both operators take the host 70 to issue, and nothing waits.
    assert finding.share_fraction == pytest.approx((50 + 20 + 130 + 100) / 600)
    assert finding.gain_fraction == pytest.approx(1 - 370 / 600)


def test_a_batch_gathered_on_the_host_is_a_batch() -> None:
    dataset = tensor(1000, 3, storage=10)
    chosen = op(
        device="cpu",
        name="aten.index.Tensor",
        inputs=(dataset, tensor(4, storage=NOISE)),
        outputs=(tensor(4, 3, storage=BATCH),),
    )
    codes = {f.code for f in findings(noise(), chosen, copy(BATCH), op(100))}

    assert "COPY001" in codes
    assert "COPY002" not in codes


def test_python_data_in_a_tensor_is_made_on_the_host() -> None:
    wrapped = op(
        device="cpu",
        name="aten.lift_fresh.default",
        inputs=(tensor(4, storage=BATCH),),
        outputs=(tensor(4, storage=BATCH),),
    )
    assert found("COPY002", wrapped, copy(BATCH), op(100)).cause == "H2D_CREATE"


def test_what_the_loader_makes_is_a_batch() -> None:
    collate = op(device="cpu", outputs=(tensor(4, storage=BATCH),), phase=Phase.DATA)
    codes = {f.code for f in findings(collate, copy(BATCH), op(100))}
    assert codes == {"COPY001"}


def test_a_line_that_raises_comes_first() -> None:
    trace = StepTrace(
        events=(op(100, host_ns=90), sync("item")),
        faults=(DeviceFault(message="the target is still on the CPU", location=at(5)),),
    )
    first, second = diagnose(trace, GPU, HOST, costs=MadeUpCosts())

    assert (first.code, first.cause, first.line) == ("DEV001", "PART_ON_CPU", 5)
    assert first.title == "on a GPU this line raises: the target is still on the CPU"
    assert (first.share_fraction, first.gain_fraction) == (0, 0)
    assert second.code == "SYNC001"


def test_a_script_that_never_uses_a_gpu() -> None:
    trace = StepTrace(events=(op(100),), caveats=(NEVER_ON_DEVICE,))
    (finding,) = diagnose(trace, GPU, HOST, costs=MadeUpCosts())

    assert (finding.code, finding.cause) == ("DEV002", "NOT_ON_GPU")


def test_launches_bound_a_small_step() -> None:
    events = tuple(op(10, host_ns=90) for _ in range(10))
    finding = found("LAUNCH001", *events, costs=MadeUpCosts(launch_ns=10, graph_launch_ns=50))

    assert finding.cause == "LAUNCH_FLOOR"
    assert finding.share_fraction == pytest.approx(0.9)  # busy for 100 of 1000
    assert finding.gain_fraction == pytest.approx(0.9)  # a graph: 50 on the host, 100 on the GPU
    assert finding.title == "launching 10 kernels takes 1 µs, running them 100 ns"


def test_a_busy_device_is_not_bound_by_launches() -> None:
    assert findings(op(100, host_ns=90)) == ()
    assert findings(op(95, host_ns=100)) == ()  # idle for 5 %: not worth a change


def updates(count: int, phase: Phase, name: str, line: int | None = 8) -> tuple[Op, ...]:
    return tuple(
        op(
            10,
            host_ns=100,
            name=name,
            phase=phase,
            line=line,
            inputs=(tensor(5, storage=20 + i, device="cuda:0"),),
        )
        for i in range(count)
    )


def test_per_parameter_optimizer() -> None:
    events = (
        *updates(10, Phase.OPTIMIZER, "aten.mul_.Tensor"),
        *updates(10, Phase.OPTIMIZER, "aten.add_.Tensor"),
    )
    finding = found("OPT001", *events)

    assert (finding.cause, finding.line) == ("OPT_LOOP", 8)
    assert finding.title == "20 operators update some 10 tensors one by one"
    assert finding.share_fraction == pytest.approx(1.0)
    assert finding.gain_fraction == pytest.approx(0.9)  # two calls instead of twenty


def test_hand_written_update_outside_of_the_optimizer() -> None:
    finding = found("OPT001", *updates(6, Phase.FORWARD, "aten.lerp_.Scalar", line=30))
    assert finding.line == 30


@pytest.mark.parametrize(
    "events",
    [
        updates(3, Phase.OPTIMIZER, "aten.add_.Tensor"),  # too few to matter
        updates(10, Phase.OPTIMIZER, "aten._foreach_add_.List"),
        updates(10, Phase.FORWARD, "aten.relu.default"),  # not in place: layers
        updates(10, Phase.BACKWARD, "aten.add_.Tensor"),  # autograd adds gradients up
        10 * updates(1, Phase.FORWARD, "aten.add_.Tensor"),  # one tensor, many times
    ],
)
def test_what_is_no_parameter_loop(events: tuple[Op, ...]) -> None:
    assert "OPT001" not in {f.code for f in findings(*events)}


def test_findings_are_sorted_by_gain() -> None:
    events = (
        copy(BATCH, 10),
        op(100, host_ns=90),
        sync("nonzero", 5),
        op(500, host_ns=400),
        sync("item", 6),
    )
    gains = [f.gain_fraction for f in findings(*events)]

    assert len(gains) >= 3
    assert gains == sorted(gains, reverse=True)
    assert all(0 <= f.share_fraction <= 1 and 0 <= f.gain_fraction <= 1 for f in findings(*events))


def test_rules_work_with_the_real_costs() -> None:
    batch = tensor(100, 8, device="cuda:0", storage=BATCH)
    weight = tensor(8, 8, device="cuda:0", storage=30)
    layer = Op(name="aten.mm.default", inputs=(batch, weight), outputs=(batch,))
    update = [
        Op(
            name="aten.add_.Tensor",
            inputs=(tensor(8, 8, device="cuda:0", storage=40 + i),) * 2,
            outputs=(tensor(8, 8, device="cuda:0", storage=40 + i),),
            phase=Phase.OPTIMIZER,
        )
        for i in range(8)
    ]
    trace = StepTrace(events=(copy(BATCH), *[layer] * 20, *update, sync("item")))
    codes = {f.code for f in diagnose(trace, GPU, reference_host())}

    assert codes == {"COPY001", "LAUNCH001", "OPT001", "SYNC001"}


def test_rules_have_stable_codes_and_a_page_each() -> None:
    codes = [rule.code for rule in all_rules()]
    assert len(set(codes)) == len(codes)
    for rule in all_rules():
        assert re.fullmatch(r"[A-Z]+\d{3}", rule.code)
        assert re.fullmatch(r"[A-Z0-9_]+", rule.cause)
        page = inspect.getdoc(type(rule))
        assert page is not None
        assert page.startswith(f"{rule.code}: ")
        sections = re.findall(r"^(\w[\w ]*):$", page, flags=re.MULTILINE)
        assert sections == [
            "What it does",
            "Why it costs time",
            "Evidence",
            "Fix",
            "Known limits",
        ]


def host_work(kind: str, duration_ns: int, num_workers: int = 0) -> HostWork:
    return HostWork(kind=kind, duration_ns=duration_ns, num_workers=num_workers, location=at(5))


@pytest.mark.parametrize(
    ("kind", "code", "cause"),
    [("data", "HOST001", "LOADER_WORKERS0"), ("script", "HOST002", "ENV_BOUND")],
)
def test_host_work_that_takes_most_of_the_step(kind: str, code: str, cause: str) -> None:
    finding = found(code, host_work(kind, 9_000), op(1_000, host_ns=10))

    assert (finding.cause, finding.line) == (cause, 5)
    assert finding.gain_fraction > 0.5


def test_host_work_that_hardly_counts_is_no_finding() -> None:
    codes = {finding.code for finding in findings(host_work("data", 50), op(10_000, host_ns=10))}
    assert "HOST001" not in codes


def test_workers_load_beside_the_step() -> None:
    events = (host_work("data", 9_000, num_workers=4), op(1_000, host_ns=10))
    assert "HOST001" not in {finding.code for finding in findings(*events)}
