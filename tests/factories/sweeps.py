"""Made-up sweeps for the tests of renderers and of the command line."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from breakeven.errors import Caveat
from breakeven.timing import Source
from breakeven.verdict import (
    SWEEP_SCHEMA_VERSION,
    AxisRole,
    AxisValue,
    Bound,
    CurvePoint,
    DeviceKind,
    PublishedPoint,
    SweepAxis,
    SweepCrossover,
    SweepCurve,
    SweepFailure,
    SweepPoint,
    SweepReport,
    find_crossover,
)
from factories.reports import CPU_NAME, HOST, MS, US

DOUBLING = tuple(2**exponent for exponent in range(4, 17))
WIDTHS = (16, 32, 64, 128, 256, 512, 1_024)
HOSTILE = "evil\x1b[31m[/red]</script><b>\u202egpu\udcff\nend"


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUpDevice:
    """A device with a step time of a fixed part plus a time per unit of the size."""

    name: str
    kind: DeviceKind
    fixed_ns: float
    unit_ns: float
    bound: Bound = Bound.LAUNCH
    spread: float = 0.25

    def point(
        self, settings: Mapping[str, AxisValue], size: float, **changes: object
    ) -> SweepPoint:
        """Return a point; the interval of a measured one has a tenth of the usual width."""
        source = changes.pop("source", Source.PREDICTED)
        spread = self.spread / 10 if source is Source.MEASURED else self.spread
        step_ns = self.fixed_ns + self.unit_ns * size
        return SweepPoint(
            settings=dict(settings),
            device=self.name,
            kind=self.kind,
            source=Source(source),
            step_ns=step_ns,
            low_ns=step_ns / (1 + spread),
            high_ns=step_ns * (1 + spread),
            bound=self.bound,
            num_samples=43 if source is Source.MEASURED else 0,
            **changes,  # type: ignore[arg-type]
        )


CPU = MadeUpDevice(
    name=CPU_NAME,
    kind=DeviceKind.CPU,
    fixed_ns=400 * US,
    unit_ns=2.4 * US,
    bound=Bound.COMPUTE,
    spread=0.15,
)
T4 = MadeUpDevice(name="T4", kind=DeviceKind.GPU, fixed_ns=2.1 * MS, unit_ns=0.06 * US)
RTX_4090 = MadeUpDevice(name="RTX 4090", kind=DeviceKind.GPU, fixed_ns=1.4 * MS, unit_ns=0.01 * US)
A100 = MadeUpDevice(
    name="A100 SXM4 80GB", kind=DeviceKind.GPU, fixed_ns=1.5 * MS, unit_ns=0.008 * US
)


def crossovers(
    points: Sequence[SweepPoint],
    axis: str,
    size_of: Callable[[SweepPoint], int],
    held: Mapping[str, AxisValue] | None = None,
) -> tuple[SweepCrossover, ...]:
    """Return the crossover of each GPU with the CPU along one axis, by the usual rules."""
    held = held or {}

    def curve(device: str, kind: DeviceKind) -> SweepCurve:
        mine = sorted((p for p in points if p.device == device), key=size_of)
        return SweepCurve(
            device=device,
            kind=kind,
            axis=axis,
            held=dict(held),
            points=tuple(
                CurvePoint(
                    size=size_of(point),
                    step_ns=point.step_ns,
                    low_ns=point.low_ns,
                    high_ns=point.high_ns,
                    source=point.source,
                )
                for point in mine
            ),
        )

    gpus = dict.fromkeys(point.device for point in points if point.kind is DeviceKind.GPU)
    cpu = curve(CPU_NAME, DeviceKind.CPU)
    return tuple(
        SweepCrossover(
            device=gpu,
            cpu=CPU_NAME,
            held=dict(held),
            outcome=find_crossover(cpu, curve(gpu, DeviceKind.GPU)),  # type: ignore[arg-type]
        )
        for gpu in gpus
    )


def report(
    axes: Sequence[SweepAxis],
    points: Sequence[SweepPoint],
    *,
    target: str = "examples/disc_mlp.py",
    arguments: Sequence[str] = (),
    **parts: object,
) -> SweepReport:
    """Return a report around points."""
    return SweepReport(
        schema_version=SWEEP_SCHEMA_VERSION,
        target=target,
        arguments=tuple(arguments),
        host=HOST,
        axes=tuple(axes),
        points=tuple(points),
        **parts,  # type: ignore[arg-type]
    )


def batch_sizes(
    sizes: Sequence[int] = DOUBLING, devices: Sequence[MadeUpDevice] = (T4, RTX_4090, A100)
) -> SweepReport:
    """Return step times over batch sizes: every second one measured on the CPU, GPUs predicted."""
    points: list[SweepPoint] = []
    for position, size in enumerate(sizes):
        settings = {"batch_size": size}
        source = Source.MEASURED if position % 2 == 0 else Source.PREDICTED
        facts = {"batch_size": size, "num_parameters": 136_456}
        points.append(CPU.point(settings, size, source=source, **facts))
        points += [device.point(settings, size, fits=True, **facts) for device in devices]
    axis = SweepAxis(name="batch_size", role=AxisRole.BATCH_SIZE, values=tuple(sizes))
    return report(
        [axis],
        points,
        crossovers=crossovers(points, "batch_size", lambda point: int(point.batch_size or 0)),
        caveats=(Caveat(code="short-run", message="the step was measured over 43 steps only."),),
    )


def widths() -> SweepReport:
    """Return a sweep of an argument that increases the number of parameters; one width fails."""
    points: list[SweepPoint] = []
    for width in WIDTHS:
        settings = {"width": width}
        facts = {"batch_size": 100, "num_parameters": 3 * width + width**2}
        points.append(CPU.point(settings, width**2 / 40, source=Source.MEASURED, **facts))
        points += [device.point(settings, width**2 / 40, **facts) for device in (T4, RTX_4090)]
    axis = SweepAxis(name="width", role=AxisRole.ARGUMENT, values=(*WIDTHS, 2_048))
    return report(
        [axis],
        points,
        arguments=("--width={width}",),
        failures=(
            SweepFailure(
                settings={"width": 2_048},
                message="the script raised ValueError: width must be below 2,000 "
                "(examples/disc_mlp.py:31)",
            ),
        ),
        crossovers=(
            *crossovers(points, "width", lambda point: int(point.settings["width"])),
            *crossovers(points, "num_parameters", lambda point: point.num_parameters),
        ),
        published=(
            PublishedPoint(
                label="GTX 1060 Mobile, TensorFlow",
                axis="num_parameters",
                size=700_000,
                step_ns=None,
                source="a lecture of 2019",
            ),
            PublishedPoint(
                label="T4, PyTorch 1.0",
                axis="width",
                size=512,
                step_ns=3.1 * MS,
                source="a lecture of 2019",
            ),
        ),
    )


def grid(
    sizes: Sequence[int] = DOUBLING[:8], threads: Sequence[int] = (1, 2), depths: Sequence[int] = ()
) -> SweepReport:
    """Return a sweep over batch sizes, threads and any depths."""
    points: list[SweepPoint] = []
    found: list[SweepCrossover] = []
    for num_threads, depth in itertools.product(threads, depths or (None,)):
        held: dict[str, AxisValue] = {"threads": num_threads}
        if depth is not None:
            held["depth"] = depth
        row: list[SweepPoint] = []
        for size in sizes:
            settings = {"batch_size": size, **held}
            work = size * (depth or 1)
            facts = {"batch_size": size, "num_parameters": 1_000 * (depth or 1)}
            row.append(CPU.point(settings, work / num_threads, source=Source.MEASURED, **facts))
            row += [device.point(settings, work, **facts) for device in (T4, RTX_4090)]
        points += row
        found += crossovers(row, "batch_size", lambda point: int(point.batch_size or 0), held)
    axes = [
        SweepAxis(name="batch_size", role=AxisRole.BATCH_SIZE, values=tuple(sizes)),
        SweepAxis(name="threads", role=AxisRole.THREADS, values=tuple(threads)),
    ]
    arguments: tuple[str, ...] = ()
    if depths:
        axes.append(SweepAxis(name="depth", role=AxisRole.ARGUMENT, values=tuple(depths)))
        arguments = ("--depth", "{depth}")
    return report(axes, points, arguments=arguments, crossovers=tuple(found))


def words() -> SweepReport:
    """Return a sweep over words, which have no crossover."""
    points: list[SweepPoint] = []
    for size, word in ((900, "relu"), (1_400, "tanh")):
        settings = {"act": word}
        points.append(CPU.point(settings, size, source=Source.MEASURED, batch_size=100))
        points.append(T4.point(settings, size, batch_size=100, fits=False))
    axis = SweepAxis(name="act", role=AxisRole.ARGUMENT, values=("relu", "tanh"))
    return report([axis], points, arguments=("--act={act}",))


def cpu_wins() -> SweepReport:
    """Return a sweep in which the GPUs lose throughout."""
    return batch_sizes(sizes=DOUBLING[:4], devices=(T4, RTX_4090))


def nothing() -> SweepReport:
    """Return a sweep with only failed points."""
    failures = tuple(
        SweepFailure(
            settings={"width": width},
            message=f"the script raised ValueError: width {width} (train.py:3)",
        )
        for width in WIDTHS
    )
    axis = SweepAxis(name="width", role=AxisRole.ARGUMENT, values=WIDTHS)
    return report([axis], [], arguments=("--width={width}",), failures=failures)


def hostile() -> SweepReport:
    """Return a sweep with names that all try to control a terminal or a page."""
    device = MadeUpDevice(name=HOSTILE, kind=DeviceKind.GPU, fixed_ns=1.4 * MS, unit_ns=5.0)
    points: list[SweepPoint] = []
    for size in DOUBLING:
        settings: dict[str, AxisValue] = {"n": size, HOSTILE: HOSTILE}
        caveat = Caveat(code=HOSTILE, message=HOSTILE)
        points.append(CPU.point(settings, size, source=Source.MEASURED, caveats=(caveat,)))
        points.append(device.point(settings, size))
    axes = [
        SweepAxis(name="n", role=AxisRole.ARGUMENT, values=DOUBLING),
        SweepAxis(name=HOSTILE, role=AxisRole.ARGUMENT, values=(HOSTILE,)),
    ]
    return report(
        axes,
        points,
        target=HOSTILE,
        arguments=("--n={n}", HOSTILE),
        failures=(SweepFailure(settings={"n": 1, HOSTILE: HOSTILE}, message=HOSTILE),),
        crossovers=crossovers(
            points, "n", lambda point: int(point.settings["n"]), {HOSTILE: HOSTILE}
        ),
        published=(PublishedPoint(label=HOSTILE, axis="n", size=99, step_ns=MS, source=HOSTILE),),
    )


def large(num_points: int = 100, num_gpus: int = 9) -> SweepReport:
    """Return a sweep of many sizes and devices."""
    gpus = [
        MadeUpDevice(
            name=f"GPU {number}",
            kind=DeviceKind.GPU,
            fixed_ns=(1 + number / 5) * MS,
            unit_ns=(60 - 5 * number) * 1.0,
        )
        for number in range(num_gpus)
    ]
    return batch_sizes(sizes=range(10, 10 * num_points + 1, 10), devices=gpus)


ALL: Mapping[str, Callable[[], SweepReport]] = {
    "batch_sizes": batch_sizes,
    "widths": widths,
    "grid": grid,
    "words": words,
    "cpu_wins": cpu_wins,
    "nothing": nothing,
    "hostile": hostile,
    "large": large,
}
