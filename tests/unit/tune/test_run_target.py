"""How long a run is, and what is done with what is known of that."""

from __future__ import annotations

from datetime import date

import msgspec
import pytest

from breakeven.capture import FailureKind, RunFailure, RunRequest, Target, TargetKind
from breakeven.settings import configured
from breakeven.store.tuned_file import Evidence, MachineNote, Tuned
from breakeven.trace import Configuration
from breakeven.tune import RunTarget, default_budget_s, end_request, pays_after_s
from breakeven.tune.budget import WATCHED_S, RunLength, watch_length
from breakeven.verdict import Numerics

REQUEST = RunRequest(
    target=Target(kind=TargetKind.SCRIPT, raw_path=b"/train.py", label="train.py"),
    is_traced=False,
    time_limit_s=300.0,
)


class Probes:
    def __init__(self, answer: RunFailure) -> None:
        self._answer = answer
        self.asked: list[RunRequest] = []

    def probe(self, request: RunRequest, /) -> RunFailure:
        self.asked.append(request)
        return self._answer


def ended(kind: FailureKind, message: str = "", num_steps: int = 360) -> RunFailure:
    return RunFailure(kind=kind, message=message, num_steps=num_steps)


@pytest.mark.parametrize(
    ("answer", "is_known"),
    [
        (ended(FailureKind.NO_STEP), True),
        (ended(FailureKind.EXIT, "0"), True),
        (ended(FailureKind.EXIT, "1"), False),
        (ended(FailureKind.TIME_LIMIT, "8 s"), False),
        (ended(FailureKind.EXCEPTION, "boom"), False),
    ],
)
def test_length_is_known_where_the_script_came_to_its_end(
    answer: RunFailure, is_known: bool
) -> None:
    length = watch_length(Probes(answer), REQUEST, startup_ns=2e9, updates_per_step=1)
    assert length == RunLength(num_steps=360, is_known=is_known)


def test_script_is_watched_for_a_while_after_its_first_step() -> None:
    probes = Probes(ended(FailureKind.TIME_LIMIT))
    watch_length(probes, REQUEST, startup_ns=2e9, updates_per_step=1)
    assert probes.asked[0].time_limit_s == 2.0 + WATCHED_S


def test_round_of_several_optimizers_is_one_step() -> None:
    probes = Probes(ended(FailureKind.NO_STEP, num_steps=200))
    length = watch_length(probes, REQUEST, startup_ns=0.0, updates_per_step=2)
    assert length.num_steps == 100


def test_script_without_a_step_of_its_own_has_no_known_length() -> None:
    probes = Probes(ended(FailureKind.NO_STEP, num_steps=0))
    assert not watch_length(probes, REQUEST, startup_ns=0.0, updates_per_step=1).is_known


def test_length_that_is_not_known_may_reach_any_step() -> None:
    known, open_ended = RunLength(num_steps=100), RunLength(num_steps=100, is_known=False)
    assert known.may_reach(100)
    assert not known.may_reach(101)
    assert open_ended.may_reach(101)
    assert not open_ended.may_reach(None)


def tuned(*, num_steps: int, pays_off_after_steps: int | None = 2_000) -> Tuned:
    evidence = Evidence(
        date=date(2026, 3, 1).isoformat(), num_steps=num_steps, is_length_known=False,
        baseline_step_ns=1e6, tuned_step_ns=1e5, speedup=10.0, low=9.0, high=11.0,
        numerics=Numerics.REORDERED, pays_off_after_steps=pays_off_after_steps, duration_ns=1,
        num_trials=0,
    )  # fmt: skip
    machine = MachineNote(
        processor="a CPU", num_cores=2, gpu="", torch_version="2", python_version="3",
        breakeven_version="1",
    )  # fmt: skip
    return Tuned(
        target="train.py", arguments=("--lr", "1"), device="cpu", machine=machine,
        configuration=Configuration(fast_step=True), evidence=evidence,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "said", "arguments", "wanted_s"),
    [
        # It is known to be long enough, by what was seen or is said.
        (2_000, 0, ("--lr", "1"), 0.0),
        (300, 2_000, ("--lr", "1"), 0.0),
        # It is not: what compiling costs is first spent in 2,000 stock steps of 1 ms.
        (300, 0, ("--lr", "1"), 2.0),
        (5_000, 1_999, ("--lr", "1"), 2.0),
        # What was seen is of other arguments.
        (5_000, 0, ("--epochs", "1"), 2.0),
    ],
)
def test_compiling_begins_at_once_only_in_a_run_that_is_known_to_pay_for_it(
    seen: int, said: int, arguments: tuple[str, ...], wanted_s: float
) -> None:
    target = RunTarget(text="train.py", arguments=arguments)
    assert pays_after_s(target, tuned(num_steps=seen), said) == pytest.approx(wanted_s)


def test_steps_that_an_older_file_assumes_are_not_known() -> None:
    now = msgspec.to_builtins(tuned(num_steps=10_000))
    target = RunTarget(text="train.py", arguments=("--lr", "1"))
    assert pays_after_s(target, msgspec.convert(now, Tuned), 0) == 0.0
    del now["evidence"]["is_length_known"]
    assert pays_after_s(target, msgspec.convert(now, Tuned), 0) == pytest.approx(2.0)


def test_settings_that_cost_nothing_once_begin_at_once() -> None:
    free = tuned(num_steps=1, pays_off_after_steps=0)
    assert pays_after_s(RunTarget(text="train.py"), free, 0) == 0.0


def test_waiting_ends_when_steps_have_gone_on_for_long_enough() -> None:
    now_s = [100.0]
    run = configured(Configuration(), pays_after_s=2.0, now_s=lambda: now_s[0])
    answers: list[bool] = []
    for later_s in (0.0, 1.0, 0.9, 0.2, 0.0):
        now_s[0] += later_s
        answers.append(run.pays_now())
    assert answers == [False, False, False, True, True]


def test_slower_machine_does_not_change_over_sooner() -> None:
    now_s = [0.0]
    run = configured(
        Configuration(), pays_after_s=2.0, pays_after_steps=200, now_s=lambda: now_s[0]
    )
    # 10 ms a step when it was tuned, 20 ms now.
    answers: list[bool] = []
    for _ in range(201):
        answers.append(run.pays_now())
        now_s[0] += 0.02
    assert answers == [False] * 200 + [True]


@pytest.mark.parametrize(("arguments", "num_steps"), [(("--lr", "1"), 2_000), (("--wide",), 0)])
def test_steps_count_under_the_arguments_of_the_tuning(
    arguments: tuple[str, ...], num_steps: int
) -> None:
    target = RunTarget(text="train.py", arguments=arguments)
    request = end_request(
        target, tuned(num_steps=300), num_steps=0, is_quiet=True, pays_after_s=2.0
    )
    assert request.pays_after_steps == num_steps
    at_once = end_request(target, tuned(num_steps=5_000), num_steps=0, is_quiet=True)
    assert at_once.pays_after_steps == 0


@pytest.mark.parametrize("num_steps", [1, 50, 199, 200, 201, 400, 5_000])
def test_run_of_unknown_length_loses_no_more_than_compiling_costs(num_steps: int) -> None:
    # 10 ms a stock step, 1 ms a compiled one, 1.8 s to compile: it pays off after 200 steps.
    now_s = [0.0]
    run = configured(Configuration(), pays_after_s=2.0, now_s=lambda: now_s[0])
    is_compiled = False
    for _ in range(num_steps):
        if not is_compiled and run.pays_now():
            is_compiled = True
            now_s[0] += 1.8
        now_s[0] += 0.001 if is_compiled else 0.01
    stock_s = num_steps * 0.01
    assert now_s[0] <= stock_s + 1.8
    assert now_s[0] == pytest.approx(stock_s) or num_steps > 200
    # Where the length was known, the best was one of the two from the first step on.
    assert now_s[0] <= 2.1 * min(stock_s, 1.8 + num_steps * 0.001) + 0.01


@pytest.mark.parametrize(
    ("run_s", "budget_s"),
    [(0.0, 60.0), (8.0, 60.0), (6_000.0, 60.0), (12_000.0, 120.0), (10_000_000.0, 600.0)],
)
def test_budget_is_a_part_of_the_run_within_bounds(run_s: float, budget_s: float) -> None:
    assert default_budget_s(run_s) == pytest.approx(budget_s)
