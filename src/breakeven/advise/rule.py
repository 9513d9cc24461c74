"""Input and output types of rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import wraps
from importlib.resources import files
from typing import Any, TypeVar

from breakeven.advise.events import line_of
from breakeven.cost import Kernel
from breakeven.device import DeviceSpec, HostSpec
from breakeven.errors import has_caveat
from breakeven.simulate import (
    TYPICAL,
    CostModel,
    Edit,
    Program,
    Scenario,
    Side,
    StepPrediction,
    build_program,
    predict_steps,
)
from breakeven.source import Sources
from breakeven.timing import CpuFacts
from breakeven.trace import (
    NEVER_ON_DEVICE,
    Copy,
    Event,
    HostWork,
    Location,
    Op,
    RunFacts,
    ScaledTrace,
    StepTrace,
    Sync,
)

_Result = TypeVar("_Result")
_Kind = TypeVar("_Kind", Copy, HostWork, Op, Sync)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RuleInput:
    """A step on the device for which rules examine it.

    Args:
        trace: The step.
        program: Its kernels.
        prediction: Its predicted time on that device, and its bottleneck.
        device: That device.
        host: The host that issues the work.
        sources: The user's files; none if unknown.
        scaled: The step at other batch sizes; None if it was traced at only one.
        cpu: Measurements on this machine's CPU; None if there are none.
        known: Results of functions with `once`, which depend on neither host nor CPU.
    """

    trace: StepTrace
    program: Program
    prediction: StepPrediction
    device: DeviceSpec
    host: HostSpec
    sources: Sources = field(default_factory=Sources)
    scaled: ScaledTrace | None = None
    cpu: CpuFacts | None = None
    known: dict[object, Any] = field(default_factory=dict[object, Any], repr=False)

    @classmethod
    def of(
        cls,
        step: StepTrace | Program,
        device: DeviceSpec,
        host: HostSpec,
        *,
        costs: CostModel | None = None,
        sources: Sources | None = None,
        scaled: ScaledTrace | None = None,
        cpu: CpuFacts | None = None,
        prediction: StepPrediction | None = None,
    ) -> RuleInput:
        """Return a step with its prediction for a device, by default with the shipped costs."""
        program = step if isinstance(step, Program) else build_program(step, costs=costs)
        host = host.for_device(device)
        if prediction is None:
            (prediction,) = predict_steps(program, (device,), host)
        return cls(
            trace=program.trace,
            program=program,
            prediction=prediction,
            device=device,
            host=host,
            sources=sources or Sources(),
            scaled=scaled,
            cpu=cpu,
        )

    @property
    def facts(self) -> RunFacts:
        """Return the facts about the run outside the step."""
        return self.trace.facts

    @property
    def step_ns(self) -> float:
        """Return the step time in nanoseconds."""
        return self.prediction.estimate.value_ns

    @property
    def is_never_on_device(self) -> bool:
        """Return whether the script uses no GPU, and was recorded as if moved to one."""
        return has_caveat(self.trace.caveats, NEVER_ON_DEVICE.code)

    def each(self, kind: type[_Kind]) -> Iterator[tuple[int, _Kind]]:
        """Yield the events of a kind, each with its position."""
        return iter(_by_kind(self).get(kind, ()))

    def each_on_device(self) -> Iterator[tuple[int, Op]]:
        """Yield the operators that the device runs, each with its position."""
        return ((index, op) for index, op in self.each(Op) if not op.is_on_host)

    def kernels_of(self, index: int) -> tuple[Kernel, ...]:
        """Return the kernels of the event at a position; none if it has none."""
        lowering = self.program.lowerings[index]
        return lowering.kernels if lowering is not None else ()

    def works(self, kind: str) -> list[int]:
        """Return the positions of host work other than operators: ``data``, ``script``."""
        return [index for index, work in self.each(HostWork) if work.kind == kind]


def once(work: Callable[[RuleInput], _Result]) -> Callable[[RuleInput], _Result]:
    """Cache a function's result for each step, so that several rules can use it."""

    @wraps(work)
    def found(case: RuleInput) -> _Result:
        if work not in case.known:
            case.known[work] = work(case)
        return case.known[work]

    return found


@once
def _by_kind(case: RuleInput) -> dict[type[Event], list[tuple[int, Any]]]:
    found: dict[type[Event], list[tuple[int, Any]]] = {}
    for index, event in enumerate(case.trace.events):
        found.setdefault(type(event), []).append((index, event))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownGain:
    """The gain of a fix without a simulation: measured on the CPU, or computed by the rule.

    Args:
        fraction: Fraction of the step.
        low_fraction: Lower end of its 90 % interval.
        high_fraction: Upper end.
    """

    fraction: float
    low_fraction: float
    high_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """One place at which a rule applies.

    Args:
        title: One line for a person.
        fix: The change to make.
        evidence: Evidence for it, in words.
        location: The user's line, if any.
        events: Positions of its events; their time is the finding's share.
        edit: The step after the fix; None if only the scenario changes, or if nothing is simulated.
        scenario: Scenario after the fix.
        gain: Gain of the fix, if it is not simulated.
        share_fraction: Its fraction of the step, if events do not show it.
        side: The side whose step the figures describe.
        is_error: Whether the line raises an error, or makes a figure of the user wrong.
    """

    title: str
    fix: str
    evidence: str = ""
    location: Location | None = None
    events: tuple[int, ...] = ()
    edit: Edit | None = None
    scenario: Scenario = TYPICAL
    gain: KnownGain | None = None
    share_fraction: float | None = None
    side: Side = Side.GPU
    is_error: bool = False


Matches = Iterable[Match]
"""The places at which a rule applies; none in a healthy step."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rule:
    """One reason why a step is slower than necessary: a function of ``advise.rules``.

    Args:
        code: Stable code: ``SYNC001``.
        cause: Root cause that the rule detects: ``SYNC_ITEM``.
        find: The function, which yields the places at which the rule applies.
    """

    code: str
    cause: str
    find: Callable[[RuleInput], Matches]

    def detect(self, case: RuleInput) -> tuple[Match, ...]:
        """Return the places at which the rule applies."""
        return tuple(self.find(case))

    @property
    def page(self) -> str:
        """Return its documentation as Markdown, from the file named by its code."""
        pages = files("breakeven.advise.rules")
        return pages.joinpath(f"{self.code}.md").read_text(encoding="utf-8")


def rule(code: str, cause: str) -> Callable[[Callable[[RuleInput], Matches]], Rule]:
    """Make a rule of a function."""
    return lambda find: Rule(code=code, cause=cause, find=find)


def by_line(
    trace: StepTrace, events: Iterable[int]
) -> list[tuple[Location | None, tuple[int, ...]]]:
    """Return positions of events grouped by the user's line, in order of first occurrence."""
    groups: dict[tuple[str, int] | None, list[int]] = {}
    for index in events:
        groups.setdefault(line_of(trace.events[index]), []).append(index)
    return [(trace.events[group[0]].location, tuple(group)) for group in groups.values()]


def without(events: Iterable[int]) -> Edit:
    """Return the edit that removes events, by their positions."""
    return Edit(replaced=dict.fromkeys(events, ()))


def changed(events: Mapping[int, Event], gone: Iterable[int] = ()) -> Edit:
    """Return the edit that replaces some events and removes those in ``gone``."""
    return Edit(
        replaced={**dict.fromkeys(gone, ()), **{index: (new,) for index, new in events.items()}}
    )


def times_per_step(count: int) -> str:
    """Return the number of occurrences per step as text."""
    return "in every step" if count == 1 else f"{count} times in every step"


def num_copies(count: int) -> str:
    """Return the number of copies as text."""
    return "1 copy" if count == 1 else f"{count} copies"
