from __future__ import annotations

import pytest
from made_up_runs import device_op, loader_use, plain_run, traced_run
from msgspec.structs import replace

from breakeven.capture import LoaderUse, PlainRun, TracedRun
from breakeven.check._device_path import DevicePath
from breakeven.trace import Copy, Event, HostWork

DATA = HostWork(kind="data", duration_ns=400_000)
SCRIPT = HostWork(kind="script", duration_ns=200_000)
OP = replace(device_op(), host_ns=100_000)


def durations(traced: TracedRun, plain: PlainRun) -> list[int]:
    trace = DevicePath(traced, plain).prepare(traced)
    return [event.duration_ns for event in trace.events if isinstance(event, HostWork)]


@pytest.mark.parametrize(
    ("loader", "expected"),
    [
        # The recorder slowed the loader down by 4.
        (loader_use(wait_ns=100_000), 100_000),
        # It cannot have sped it up: what the plain run waits for more is noise.
        (loader_use(wait_ns=900_000), 400_000),
        # With workers the wait says nothing about the work.
        (loader_use(wait_ns=1_000, num_workers=4), 400_000),
        # No loader was seen in the plain run.
        (None, 400_000),
    ],
)
def test_data_takes_what_it_takes_in_the_plain_run(loader: LoaderUse | None, expected: int) -> None:
    traced = traced_run(DATA, OP)
    assert durations(traced, plain_run(10_000_000, loader)) == [expected]


def test_data_of_several_fetches_is_scaled_as_one() -> None:
    traced = traced_run(DATA, DATA, OP)
    # 800 µs traced, 200 µs plain.
    plain = plain_run(10_000_000, loader_use(wait_ns=200_000))
    assert durations(traced, plain) == [100_000, 100_000]


@pytest.mark.parametrize(
    ("step_ns", "expected"),
    [
        # Of a step of 250 µs, operators take 100 µs and data 50 µs: 100 µs are left for Python.
        (250_000, 100_000),
        # There is room for all that was traced, which is an upper limit.
        (350_000, 200_000),
        (9_000_000, 200_000),
        # The plain step is over before operators and data are: nothing is left.
        (150_000, 0),
        (50_000, 0),
    ],
)
def test_work_of_the_script_takes_no_more_than_the_plain_step_leaves(
    step_ns: int, expected: int
) -> None:
    traced = traced_run(SCRIPT, OP)
    assert durations(traced, plain_run(step_ns, loader_use(wait_ns=50_000))) == [expected]


def test_ratios_of_one_batch_size_hold_at_another() -> None:
    small = traced_run(DATA, OP, SCRIPT)
    path = DevicePath(small, plain_run(250_000, loader_use(wait_ns=100_000)))
    # Data took a quarter; 250 - 100 - 100 µs leave the script a quarter too.
    double = traced_run(*(twice(event) for event in (DATA, OP, SCRIPT)), batch_size=64)
    prepared = path.prepare(double)
    assert [event.duration_ns for event in prepared.events if isinstance(event, HostWork)] == [
        200_000,
        100_000,
    ]
    assert prepared.batch_size == 64


def twice(event: Event) -> Event:
    return replace(event, duration_ns=2 * event.duration_ns) if event != OP else event


def test_all_but_the_work_of_the_host_stays() -> None:
    copy = Copy(source="cpu", destination="cuda:0", num_bytes=128)
    traced = traced_run(DATA, copy, OP, SCRIPT)
    trace = DevicePath(traced, plain_run(250_000, loader_use(wait_ns=100_000))).prepare(traced)
    assert [event for event in trace.events if not isinstance(event, HostWork)] == [copy, OP]
    assert [type(event) for event in trace.events] == [type(e) for e in traced.trace.events]


def test_step_without_host_work_is_left_alone() -> None:
    traced = traced_run(OP)
    assert DevicePath(traced, plain_run()).prepare(traced) == traced.trace


@pytest.mark.parametrize(
    ("alone_ns", "expected"),
    [
        (300_000, 600_000),  # two workers finish a batch in 300 µs, so each takes twice that
        (0, 400_000),  # not measured: the work that was traced
    ],
)
def test_workers_take_for_a_batch_what_they_take_alone(alone_ns: float, expected: int) -> None:
    data = replace(DATA, num_workers=2)
    loader = replace(loader_use(wait_ns=1_000, num_workers=2), alone_ns=alone_ns)
    assert durations(traced_run(data, OP), plain_run(10_000_000, loader)) == [expected]
