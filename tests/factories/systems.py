"""Made-up reports of systems for tests, and a bench that runs nothing."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

from breakeven.capture import PlainRun
from breakeven.cost import reference_host
from breakeven.device import HostSpec, find_device
from breakeven.errors import Caveat
from breakeven.report import (
    SYSTEMS_SCHEMA_VERSION,
    Claim,
    ClaimOutcome,
    ColumnKind,
    RowSource,
    SystemReport,
    SystemsReport,
    SystemTable,
    TableColumn,
    TableRow,
)
from breakeven.simulate import StepPrediction, predict_steps
from breakeven.timing import Estimate, Source
from breakeven.trace import Copy, Location, Op, Phase, StepTrace, Sync, TensorSpec
from breakeven.verdict import (
    AxisRole,
    HostSummary,
    PublishedPoint,
    SweepAxis,
    SweepPoint,
    SweepReport,
)
from factories import sweeps
from factories.reports import HOST, MS
from factories.runs import plain_run


def estimate(value_ms: float, source: Source = Source.PREDICTED, spread: float = 1.3) -> Estimate:
    return Estimate(
        value_ns=value_ms * MS,
        low_ns=value_ms * MS / spread,
        high_ns=value_ms * MS * spread,
        source=source,
    )


def table() -> SystemTable:
    """Return a table with every source and kind of figure."""
    columns = (
        ("device", ColumnKind.TEXT),
        ("step", ColumnKind.TIME_NS),
        ("it/s", ColumnKind.PER_SECOND),
        ("vs CPU", ColumnKind.RATIO),
        ("GPU idle", ColumnKind.FRACTION),
    )
    return SystemTable(
        title="Batch 100",
        columns=tuple(TableColumn(name=name, kind=kind) for name, kind in columns),
        rows=(
            TableRow(source=RowSource.PUBLISHED, cells=("GPU", 2.94 * MS, 340.0, 0.52, None)),
            TableRow(
                source=RowSource.MEASURED,
                cells=("this CPU, 1 thread", estimate(1, Source.MEASURED, 1.02), 1_000, 1.0, None),
            ),
            TableRow(source=RowSource.PREDICTED, cells=("T4", estimate(1.25), 800, 0.8, 0.93)),
        ),
        note="vs CPU: against the CPU measured here.",
    )


def claim(outcome: ClaimOutcome = ClaimOutcome.AGREES, text: str = "the CPU wins") -> Claim:
    return Claim(
        claim=text,
        published="0.52×",
        ours="0.8× (0.6–1.05×)",
        outcome=outcome,
        because="The hosts differ.",
    )


def system(name: str = "rnn-stream", **parts: object) -> SystemReport:
    whole: dict[str, object] = {
        "title": "an RNN over a stream of frames",
        "published_in": "a question",
        "script": "rnn_stream.py",
        "host": HOST,
        "tables": (table(),),
        "claims": (claim(),),
        "caveats": (Caveat(code="made-up", message="nothing here was run"),),
    }
    return SystemReport(name=name, **{**whole, **parts})  # type: ignore[arg-type]


def report() -> SystemsReport:
    """Return two systems with runs and all outcomes, and one system without a run."""
    disagrees = claim(ClaimOutcome.DISAGREES, "a GPU is faster from 0.3–3 M parameters on")
    is_open = claim(ClaimOutcome.OPEN, "the update on the device makes training 2 times as fast")
    return SystemsReport(
        schema_version=SYSTEMS_SCHEMA_VERSION,
        systems=(system(), system("disc-mlp", claims=(disagrees, is_open))),
        failures={"neural-ode": "neural_ode.py took longer than 120 s"},
    )


def num_disc_parameters(depth: int) -> int:
    """Return the number of parameters of ``disc_mlp.py``: 2 inputs, widths 4, 8, ..., 2 classes."""
    widths = [2**power for power in range(1, depth + 1)] + [2]
    return sum(a * b + b for a, b in itertools.pairwise(widths))


def disc_sweep(gpu_fixed_ms: float = 1.5, cpu_factor: float = 1.0) -> SweepReport:
    """Return times by depth: CPU times grow with the parameters, GPU times hardly grow."""
    cpu = replace(sweeps.CPU, fixed_ns=0.4 * MS, unit_ns=1.5 * cpu_factor)
    gpus = [
        replace(sweeps.T4, name=name, fixed_ns=gpu_fixed_ms * MS, unit_ns=0.05)
        for name in ("RTX 2070 Max-Q", "GTX 1060 6GB")
    ]
    points: list[SweepPoint] = []
    for depth in range(2, 13):
        size = num_disc_parameters(depth)
        facts = {"batch_size": 100, "num_parameters": size}
        points.append(cpu.point({"depth": depth}, size, source=Source.MEASURED, **facts))
        points += [gpu.point({"depth": depth}, size, **facts) for gpu in gpus]
    axis = SweepAxis(name="depth", role=AxisRole.ARGUMENT, values=tuple(range(2, 13)))
    found = sweeps.crossovers(points, "num_parameters", lambda point: point.num_parameters)
    return sweeps.report([axis], points, crossovers=found)


def update_trace(*, is_on_host: bool) -> StepTrace:
    """Return a step with its update on the host, or on the GPU with the weights."""
    weights = 4_000_000
    forward = _op(Phase.FORWARD, "cuda:0")
    sync = Sync(kind="item", num_bytes=4)
    if not is_on_host:
        return StepTrace(events=(forward, sync, _op(Phase.OPTIMIZER, "cuda:0")), batch_size=20)
    step = Location(file="mnist_mlp.py", line=56, function="step")
    read = Sync(kind="cpu", num_bytes=weights, location=step)
    write = Copy(source="cpu", destination="cuda:0", num_bytes=weights, location=step)
    return StepTrace(
        events=(forward, sync, read, _op(Phase.OPTIMIZER, "cpu"), write), batch_size=20
    )


def _op(phase: Phase, device: str) -> Op:
    spec = TensorSpec(shape=(1_000_000,), dtype="float32", device=device)
    return Op(
        name="aten.add_.Tensor",
        inputs=(spec, spec),
        outputs=(spec,),
        phase=phase,
        device=device,
        host_ns=2_000_000,
    )


class FakeBench:
    """Returns made-up runs and steps, and real predictions for the reference host."""

    def __init__(self, sweep: SweepReport | None = None) -> None:
        self.measured: list[tuple[str, tuple[str, ...], int]] = []
        self.host: HostSpec = reference_host()
        self.torch_version = "2.13.0"
        self._sweep = sweep

    def measure(
        self, script: str, *arguments: str, num_threads: int = 0, budget_s: float = 1.0
    ) -> PlainRun:
        self.measured.append((script, arguments, num_threads))
        is_large = "10000" in arguments
        return plain_run(60_000_000 if is_large else 1_500_000)

    def step(self, script: str, *arguments: str, num_threads: int = 0) -> StepTrace:
        return update_trace(is_on_host="host" in arguments)

    def host_for_prediction(self, trace: StepTrace) -> HostSpec:
        return self.host

    def predict(
        self,
        traces: StepTrace | Sequence[StepTrace],
        devices: Sequence[str],
        *,
        host: str | None = None,
    ) -> tuple[StepPrediction, ...]:
        return predict_steps(traces, [find_device(name) for name in devices], self.host)

    def sweep(
        self,
        script: str,
        *arguments: str,
        axes: Sequence[SweepAxis],
        devices: Sequence[str],
        published: Sequence[PublishedPoint] = (),
        host: str | None = None,
    ) -> SweepReport:
        assert self._sweep is not None
        return sweeps.report(
            axes, self._sweep.points, crossovers=self._sweep.crossovers, published=published
        )

    def host_summary(self) -> HostSummary:
        return HOST
