"""What rented machines take to issue a GPU's work, and how well the others of the kind tell it.

    python benchmarks/host_kinds.py

For each machine of `data`: the factor of its host, over the reference host's, with which its steps
that the host decides are predicted without bias; then these steps as they are predicted from the
other machines alone. Last, the eager steps of small networks, before and after the measured step of
one of them tells the host, as `check --measured` has it.
"""

from __future__ import annotations

import csv
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "gpu")]

from pair_steps import COMPILED, EAGER, NETWORK, Known, programs_at  # noqa: E402
from small_networks import create, train_step  # noqa: E402
from whole_steps import predicted_ms, programs_of, read_rows, step_of  # noqa: E402

from breakeven.calibrate import host_called  # noqa: E402
from breakeven.calibrate.elsewhere import (  # noqa: E402
    HostAnchor,
    backward_fraction,
    combined,
    factor_shown,
    predictor,
    with_known_passes,
)
from breakeven.capture import trace_step  # noqa: E402
from breakeven.cost import reference_host  # noqa: E402
from breakeven.device import (  # noqa: E402
    FeedingHost,
    HostKind,
    HostSpec,
    find_device,
    find_kind,
    load_host_kinds,
)
from breakeven.device.host_kinds import KindEntry, SeenMachine, kinds_of  # noqa: E402
from breakeven.simulate import Program  # noqa: E402
from breakeven.studies import as_timed  # noqa: E402
from breakeven.trace import StepTrace  # noqa: E402
from breakeven.units import NS_PER_MS  # noqa: E402

DATA = HERE / "data"
MACHINES = {
    "H200, Xeon, morning of 2026-11-27": ("h200_kit_steps_2026-11-27.csv",),
    "H200, Xeon, 2026-11-27": ("h200_steps_2026-11-27.csv",),
    "H200, Xeon, 2026-11-28": ("h200_steps_2026-11-28.csv", "pairs_h200_2026-11-28.csv"),
}
PAIRS_MACHINE, PAIRS = "H200, Xeon, 2026-11-28", "pairs_h200_2026-11-28.csv"
_KIND = "cloud"
_ISSUES_FRACTION = 0.9
_GPU = find_device("H200")
# A measured time, in milliseconds, and the step.
Step = tuple[float, Program]


def main() -> int:
    """Print both tables as Markdown."""
    kind = find_kind(_KIND)
    steps = {
        name: [step for table in tables for step in _steps(DATA / table)]
        for name, tables in MACHINES.items()
    }
    seen = tuple(_seen(name, found, kind) for name, found in steps.items())
    print("| Machine | Steps | Factor |\n| --- | ---: | ---: |")
    for machine in seen:
        print(f"| {machine.name} | {machine.num_rows} | {machine.factor:.2f} |")
    print("\n| Left out | 90 % interval holds | High ÷ low, median | Off, median | Bias |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for machine in seen:
        others = tuple(other for other in seen if other is not machine)
        print(f"| {machine.name} | {_figures(steps[machine.name], _of_machines(others))} |")
    every = [step for found in steps.values() for step in found]
    notebook = _of_machines(find_kind("sandbox").machines)
    print(f"| all, by Colab's factor | {_figures(every, notebook)} |")
    others = tuple(machine for machine in seen if machine.name != PAIRS_MACHINE)
    networks = dict(_networks(DATA / PAIRS))
    print("\n| Told by | 90 % interval holds | High ÷ low, median | Off, median | Bias |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, prior in (("the other machines", _of_machines(others)), ("Colab", notebook)):
        _print_told(name, prior, networks)
    return 0


def _networks(table: Path) -> Iterator[tuple[str, Step]]:
    """Yield the eager steps of the small networks, by name."""
    known = msgspec.json.decode(table.with_suffix(".json").read_bytes(), type=Known)
    for row in read_rows(table):
        name = row["name"]
        if row["kind"] == NETWORK and row["where"] == EAGER and row["value_ms"]:
            step = _recorded(name, known)
            yield name, (float(row["value_ms"]), programs_at(step)[EAGER])


def _recorded(name: str, known: Known) -> StepTrace:
    traced = trace_step(train_step(create(name)))
    return as_timed(traced.trace, traced, known.plain[name])


def _print_told(prior_name: str, prior: FeedingHost, networks: dict[str, Step]) -> None:
    """Print the steps of networks by what is known before, and with one of them measured."""
    print(f"| {prior_name} | {_figures(list(networks.values()), prior)} |")
    assert isinstance(prior.kind, HostKind)
    found: list[Figures] = []
    known = prior.each(with_known_passes)
    for name, (value_ms, program) in networks.items():
        shown = factor_shown(value_ms * NS_PER_MS, prior.kind, predictor(program, _GPU, known))
        assert shown is not None, f"the host does not decide {name}"
        anchor = HostAnchor(
            date="", said="", target=name, factor=shown[0], log_sigma=shown[1],
            backward_fraction=backward_fraction(program, prior),
        )  # fmt: skip
        rest = [step for other, step in networks.items() if other != name]
        found.append(_figures(rest, *(_measured(known, anchor, step) for _, step in rest)))
        print(f"| {prior_name}, and {name} ({shown[0]:.2f}) | {found[-1]} |")
    holds, num_steps, *others = zip(*found, strict=True)
    middle = Figures(sum(holds), sum(num_steps), *map(statistics.median, others))
    print(f"| {prior_name}, and each of them in turn | {middle} |")
    least = min(found, key=lambda one: one.holds / one.num_steps)
    print(f"| {prior_name}, and that with which fewest are held | {least} |")


def _measured(known: FeedingHost, anchor: HostAnchor, program: Program) -> FeedingHost:
    """Return the host of a step, with another step measured in its machine."""
    assert isinstance(known.kind, HostKind)
    ratio, log_sigma = combined(known.kind, [anchor], backward_fraction(program, known))
    factor = ratio * known.kind.factor
    kind = msgspec.structs.replace(known.kind, factor=factor, log_sigma=log_sigma)
    return msgspec.structs.replace(known, kind=kind)


def _steps(table: Path) -> Iterator[Step]:
    """Yield the steps of a table that the host decides and that can be predicted."""
    with table.open(newline="", encoding="utf-8") as stream:
        is_pairs = "where" in (csv.DictReader(stream).fieldnames or ())
    yield from _pairs(table) if is_pairs else _whole_steps(table)


def _whole_steps(table: Path) -> Iterator[Step]:
    rows = [
        row
        for row in read_rows(table)
        if row["workload"].startswith(("breakeven:", "llm:")) and row["value_ms"]
        and _host_decides(row["host_issue_ms"], row["value_ms"])
    ]  # fmt: skip
    programs = programs_of([step_of(row) for row in rows], None)
    for row, program in zip(rows, programs, strict=True):
        assert not isinstance(program, str), program
        yield float(row["value_ms"]), program


def _pairs(table: Path) -> Iterator[Step]:
    known = msgspec.json.decode(table.with_suffix(".json").read_bytes(), type=Known)
    programs: dict[str, dict[str, Program]] = {}
    for row in read_rows(table):
        name, where = row["name"], row["where"]
        if row["kind"] != NETWORK or where not in (EAGER, COMPILED) or not row["value_ms"]:
            continue
        if not _host_decides(row["issue_ms"], row["value_ms"]):
            continue
        if name not in programs:
            programs[name] = programs_at(_recorded(name, known))
        yield float(row["value_ms"]), programs[name][where]


def _host_decides(issue_ms: str, value_ms: str) -> bool:
    return float(issue_ms or 0) > _ISSUES_FRACTION * float(value_ms)


def _seen(name: str, steps: Sequence[Step], kind: HostKind) -> SeenMachine:
    """Return a machine with the factor at which its steps are predicted without bias."""
    low, high = 0.5, 8.0
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        host = _host(msgspec.structs.replace(kind, factor=middle))
        log_bias = statistics.mean(
            math.log(predicted_ms(program, _GPU, host)[0] / value_ms) for value_ms, program in steps
        )
        low, high = (low, middle) if log_bias > 0 else (middle, high)
    factor = math.sqrt(low * high)
    return SeenMachine(name=name, factor=factor, num_rows=len(steps), source=name)


def _host(kind: HostKind) -> FeedingHost:
    """Return a host of the kind, in place of the one that is known."""
    return FeedingHost.of(host_called(_KIND, reference_host()), kind)


def _of_machines(machines: tuple[SeenMachine, ...]) -> FeedingHost:
    """Return a host of the kind, as it would be if these were all that was seen of it."""
    entries = [
        KindEntry(
            id=kind.id,
            name=kind.name,
            is_rented=kind.is_rented,
            machines=machines if kind.id == _KIND else kind.machines,
        )
        for kind in load_host_kinds()
    ]
    kind = next(kind for kind in kinds_of(tuple(entries)) if kind.id == _KIND)
    return _host(msgspec.structs.replace(kind, handoff_ns=find_kind(_KIND).handoff_ns))


class Figures(NamedTuple):
    """How well some steps are predicted."""

    holds: int
    num_steps: int
    width: float
    off: float
    bias: float

    def __str__(self) -> str:
        """Return cells of a row."""
        holds = f"{self.holds} of {self.num_steps}"
        return f"{holds} | {self.width:.1f} | {self.off:.2f}× | {self.bias:.2f}"


def _figures(steps: Sequence[Step], *hosts: HostSpec) -> Figures:
    """Return the figures of steps, each with its host or all with one."""
    every = hosts * len(steps) if len(hosts) == 1 else hosts
    found = [
        (value_ms, *predicted_ms(program, _GPU, host))
        for (value_ms, program), host in zip(steps, every, strict=True)
    ]
    logs = [math.log(told / value) for value, told, _, _ in found]
    return Figures(
        holds=sum(low <= value <= high for value, _, low, high in found),
        num_steps=len(found),
        width=statistics.median(high / low for _, _, low, high in found),
        off=math.exp(statistics.median(map(abs, logs))),
        bias=math.exp(statistics.mean(logs)),
    )


if __name__ == "__main__":
    sys.exit(main())
