"""What `pairs.py` measures and predicts, stage by stage, each in a process of its own.

A row is written before it is measured, with a note that stays if the process does not survive, and
again when it is measured. What fails is a row with the reason.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import msgspec
import torch
from compile_ahead import compile_beside, forget_choices
from pairs import CANNOT, TIME_OVER
from single_calls import single_calls
from small_networks import NETWORKS, Training, create, train_step
from summary import CAPTURED, CASE, COMPILED, CPU, DRY_RUN, EAGER, NETWORK
from whole_steps import ENDED, read_rows, write_rows

from breakeven.calibrate import host_called
from breakeven.calibrate.gpu.calibrating import reason_of
from breakeven.calibrate.gpu.machine import check_gpu, describe_machine, find_gpu
from breakeven.capture import Launcher, PlainRun, RunFailure, time_step, trace_step
from breakeven.cost import CalibratedMachine, StepCosts, load_efficiencies, load_step_effects
from breakeven.device import AUTO, DeviceWork, HostSpec, find_device, known_device, select_devices
from breakeven.errors import BreakevenError
from breakeven.measure import DeviceTimer, measure_host
from breakeven.processor import num_cores
from breakeven.simulate import CompileMode, Program, build_program, compiled_step, predict_steps
from breakeven.studies import as_timed, host_for_prediction
from breakeven.studies.measured_step import measure_target, measured_result
from breakeven.studies.study import Study, start_study
from breakeven.trace import StepTrace
from breakeven.units import NS_PER_MS
from breakeven.verdict import DeviceKind, decide, device_result

FIELDS = (
    "date", "gpu", "machine", "software", "kind", "name", "where", "setting", "value_ms", "spread",
    "repeats", "issue_ms", "absent_ms", "absent_low_ms", "absent_high_ms", "absent_choice",
    "present_ms", "present_low_ms", "present_high_ms", "present_choice", "note",
)  # fmt: skip
# One of a kind, which are compiled before the cases and before the others.
FIRST = (
    "MLP 11-32-32-1, Adam", "disc, depth 8", "transformer", "convolutional, batch norm",
    "embeddings", "norm chain", "autoencoder, sampled", "Q-learning", "language model", "PPO",
)  # fmt: skip
NAMES = (*FIRST, *(name for name in NETWORKS if name not in FIRST))
# Those with reads first; the last one draws samples for long before its first step.
CASES = (
    "01_ram_glimpse", "02_pruned_tree_gcn", "12_maml", "03_exact_gp", "10_collab_embedding",
    "00_lenet_two_workers", "13_dilate", "14_lightgcn",
)  # fmt: skip
_SCRIPTS = Path(__file__).parents[2] / "tests" / "cases"
# The GPU whose place the CPU takes in a dry run.
_STANDS_FOR = "t4"

# Each is timed in rounds, of which the fastest counts: other work only ever adds time.
_ROUNDS, _ROUND_S, _CALL_S, _BLOCK_NS, _MOST_S = 2, 0.15, 0.05, 20_000_000, 5.0
_THREADS, _CPU_S = (1, 2, 4), 0.2
_CASE_S, _CASE_LIMIT_S = 0.5, 60.0
# Before a capture, for which torch asks for eleven at most, and until a compiled step is settled.
_WARMUP_STEPS = 11
# A row, or a case, is not begun with less time left.
_LEAST_S, _LEAST_CASE_S = 3.0, 25.0
_COMPILE_FRACTION = 0.6

Cells = dict[str, object]


class TimeOverError(Exception):
    """There is no time for another row."""


class Known(msgspec.Struct, kw_only=True):
    """What is known besides the table, enough to predict anew on any machine.

    Args:
        machine: The machine.
        device: Id of the GPU in the catalogue; empty if it is not there.
        hosts: The machine's costs, measured with the GPU hidden (``absent``) and seen.
        plain: The fastest run on the CPU, by name.
        predicted: Cells by where a step runs, by name.
    """

    machine: CalibratedMachine
    device: str
    hosts: dict[str, HostSpec] = {}
    plain: dict[str, PlainRun] = {}
    predicted: dict[str, dict[str, dict[str, Any]]] = {}


class Book:
    """The table and its file of what is known.

    Args:
        args: Of the command line.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.is_dry = args.dry_run
        self._until_s, self._only = args.until, args.only
        if unknown := set(args.only or ()) - {*NAMES, *CASES}:
            _give_up(f"no network or case is called {unknown.pop()!r}")
        args.out.mkdir(parents=True, exist_ok=True)
        self._table, self._file = args.out / "pairs.csv", args.out / "pairs.json"
        self.rows: list[Cells] = [dict(row) for row in read_rows(self._table)]
        if args.again:
            self.rows = [row for row in self.rows if row["note"] != ENDED]
        if self._file.exists():
            self.known = msgspec.json.decode(self._file.read_bytes(), type=Known)
            return
        machine = describe_machine(self.device)
        spec = known_device(_STANDS_FOR if self.is_dry else machine.gpu)
        if self.is_dry:
            machine = msgspec.structs.replace(machine, gpu=DRY_RUN)
        self.known = Known(machine=machine, device=spec.id if spec else "")

    @property
    def device(self) -> torch.device:
        """Return the GPU, or what stands in for it.

        Raises:
            SystemExit: There is none.
        """
        device = torch.device("cpu") if self.is_dry else find_gpu("auto")
        if device is None:
            _give_up("torch sees no GPU here; --dry-run tries the path without one")
        return device

    def wanted(self, names: Sequence[str]) -> Iterator[str]:
        """Yield those of the names that are asked for."""
        yield from (name for name in names if not self._only or name in self._only)

    def left_s(self) -> float:
        """Return how much time is left."""
        return self._until_s - time.time()

    def need(self, seconds: float) -> None:
        """Raise `TimeOverError` if less time is left."""
        if self.left_s() < seconds:
            raise TimeOverError

    def has(self, name: str, where: str) -> bool:
        """Return whether there is such a row."""
        return any((row["name"], row["where"]) == (name, where) for row in self.rows)

    def add(self, kind: str, name: str, where: str, measure: Callable[[], Cells]) -> bool:
        """Measure what the table lacks, and write it; return whether that failed.

        Raises:
            TimeOverError: There is no time for it.
        """
        if self.has(name, where):
            return False
        self.need(_LEAST_S)
        m = self.known.machine
        row: Cells = {
            "date": m.date, "gpu": m.gpu, "kind": kind, "name": name, "where": where, "note": ENDED,
            "machine": f"{m.processor}, {m.num_cores} cores, {m.system}",
            "software": f"torch {m.torch_version}, {m.driver}, Python {m.python_version}, "
            f"breakeven {m.breakeven_version}",
        }  # fmt: skip
        row |= self.known.predicted.get(name, {}).get(where, {})
        self.rows.append(row)
        self.save()
        reason = ""
        try:
            row |= {"note": ""} | measure()
        except Exception as error:  # what torch or the script refuses is a row too
            row["note"] = reason = reason_of(error)
        self.save()
        print(kind, name, where, row.get("value_ms", row["note"]), sep=" · ", flush=True)
        return bool(reason)

    def set_predicted(self, name: str, step: StepTrace, captured: StepTrace | None = None) -> None:
        """Predict a step, for the rows that there are and those that follow."""
        if not self.known.device:
            return  # the catalogue lacks the GPU
        found = self.known.predicted[name] = predicted_cells(self.known, name, step, captured)
        for row in self.rows:
            if row["name"] == name:
                row |= found.get(str(row["where"]), {})
        self.save()

    def save(self) -> None:
        """Write both."""
        write_rows(self._table, self.rows, FIELDS)
        partial = self._file.with_suffix(".partial")
        partial.write_bytes(msgspec.json.encode(self.known))
        partial.replace(self._file)


def _give_up(reason: str) -> NoReturn:
    print(reason, file=sys.stderr)
    sys.exit(CANNOT)


def timed_cells(
    call: Callable[[], object], timer: DeviceTimer, *, budget_s: float = _ROUND_S
) -> Cells:
    """Return the time of a call; calls follow each other without a wait but their own."""
    rounds = [
        timer.time_call(
            call, budget_s=budget_s, fills_queue=False, block_ns=_BLOCK_NS, most_s=_MOST_S
        )
        for _ in range(_ROUNDS)
    ]
    found = min(rounds, key=lambda each: each.time_ns)
    cells = _cells(found.time_ns, found.spread, found.num_calls)
    return cells | {"issue_ms": _ms(found.issue_ns)}


def _cells(time_ns: float, spread: float, repeats: int) -> Cells:
    return {"value_ms": _ms(time_ns), "spread": round(spread, 3), "repeats": repeats}


def _ms(time_ns: float) -> float:
    return round(time_ns / NS_PER_MS, 6)


def _measure_host(book: Book, name: str) -> None:
    """Measure what an operator takes this host, and keep every figure."""
    if name in book.known.hosts:
        return
    found = measure_host()
    book.known.hosts[name] = found.host
    where = f"host, GPU {name}"
    for figure in found.figures:
        spread = figure.high_ns / max(figure.low_ns, 1.0)
        cells = _cells(figure.median_ns, spread, found.num_rounds)
        book.add("host", figure.title, where, lambda c=cells: c)
    work = found.host.device_work
    if isinstance(work, DeviceWork):
        book.add("host", "handover of backward", where, lambda: {"value_ms": _ms(work.handoff_ns)})


def measure_on_gpu(book: Book) -> None:
    """Measure what needs the GPU, compiling apart.

    Raises:
        BreakevenError: The GPU answers no more; a new process may still reach it.
        SystemExit: A capture failed, which may leave a broken process: the next one goes on.
    """
    timer = DeviceTimer(book.device)
    for name in book.wanted(NAMES):
        if book.add(NETWORK, name, EAGER, lambda n=name: eager_cells(n, timer)):
            check_gpu(timer.device)
    _measure_host(book, "present")
    for name, build in single_calls(timer):
        cells = lambda b=build: timed_cells(b(), timer, budget_s=_CALL_S)  # noqa: E731
        book.add("call", name, "GPU", cells)
    for name in book.wanted(NAMES):
        if book.add(NETWORK, name, CAPTURED, lambda n=name: captured_cells(n, timer)):
            sys.exit(1)


def eager_cells(name: str, timer: DeviceTimer) -> Cells:
    """Return the time of a network's step as it is written."""
    return timed_cells(train_step(create(name, timer.device)), timer)


def captured_cells(name: str, timer: DeviceTimer) -> Cells:
    """Return the time of a network's whole step, replayed as one CUDA graph."""
    if timer.device.type != "cuda":
        return {"note": DRY_RUN if timer.device.type == "cpu" else "no CUDA graphs"}
    training = create(name, timer.device)
    setting = "capturable=True" if make_capturable(training) else ""
    try:
        replay = captured_step(training)
    except Exception as error:
        # The first error says what cannot be captured, those after it that the capture is invalid.
        raise error.__context__ or error from None
    return {"setting": setting} | timed_cells(replay, timer)


def make_capturable(training: Training) -> bool:
    """Let optimizers count steps on the GPU; return whether any has a switch for that."""
    groups = [group for optimizer in training.optimizers for group in optimizer.param_groups]
    switched = [group for group in groups if "capturable" in group]
    for group in switched:
        group["capturable"] = True
    return bool(switched)


def captured_step(training: Training) -> Callable[[], object]:
    """Return what replays a step.

    Raises:
        RuntimeError: It cannot be captured, or a replay trains nothing.
    """
    step = train_step(training)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARMUP_STEPS):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    groups = [group for optimizer in training.optimizers for group in optimizer.param_groups]
    weights = [weight for group in groups for weight in group["params"]]
    before = [weight.detach().clone() for weight in weights]
    graph.replay()
    if all(torch.equal(old, new) for old, new in zip(before, weights, strict=True)):
        raise RuntimeError("a replay changes no weight")
    return lambda: (graph.replay(), training)  # keeps the memory that the graph works on


def measure_compiled(book: Book, names: Sequence[str]) -> None:
    """Compile steps beside each other, then time one after the other."""
    names = [name for name in book.wanted(names) if not book.has(name, COMPILED)]
    if names and not book.is_dry:
        begun_s = time.time()
        command = (sys.executable, __file__, "compile", "--only")
        commands = [(*command, name) for name in names]
        compile_beside(commands, _COMPILE_FRACTION * book.left_s())
        forget_choices(begun_s)
    timer = DeviceTimer(book.device)
    for name in names:
        if book.add(NETWORK, name, COMPILED, lambda n=name: compiled_cells(n, timer)):
            check_gpu(timer.device)


def compiled_cells(name: str, timer: DeviceTimer) -> Cells:
    """Return the time of a step of which forward and backward are compiled."""
    if timer.device.type == "cpu":
        return {"note": DRY_RUN}
    from torch._dynamo.utils import counters

    training = create(name, timer.device)
    training = replace(training, loss=torch.compile(training.loss, mode="reduce-overhead"))
    step = train_step(training)
    counters.clear()
    try:
        for _ in range(_WARMUP_STEPS):
            step()
        cells = timed_cells(step, timer)
        breaks, skips = counters["graph_break"].total(), counters["inductor"]["cudagraph_skips"]
        return {"setting": f"graph breaks: {breaks}, without CUDA graph: {skips}"} | cells
    finally:
        torch.compiler.reset()


def measure_on_cpu(book: Book) -> None:
    """Measure steps on the CPU, with the GPU hidden, and predict them on the GPU."""
    _measure_host(book, "absent")
    for name in book.wanted(NAMES):
        book.add(NETWORK, name, CPU, lambda n=name: _cpu_cells(book, n))
    predict_networks(book, are_all=False)


def _cpu_cells(book: Book, name: str) -> Cells:
    runs: list[PlainRun] = []
    for num_threads in sorted({min(count, num_cores()) for count in (*_THREADS, num_cores())}):
        torch.set_num_threads(num_threads)
        runs.append(time_step(train_step(create(name)), budget_s=_CPU_S))
    torch.set_num_threads(1)
    return _plain_cells(book, name, min(runs, key=lambda run: run.measurement.median_ns))


def _plain_cells(book: Book, name: str, run: PlainRun) -> Cells:
    book.known.plain[name] = run
    return _run_cells(run) | {"setting": f"threads={run.num_threads}"}


def _run_cells(run: PlainRun) -> Cells:
    estimate = run.measurement.estimate
    spread = estimate.high_ns / estimate.low_ns
    return _cells(estimate.value_ns, spread, len(run.measurement.samples_ns))


def predict_networks(book: Book, *, are_all: bool) -> None:
    """Predict what was measured on the CPU; anew, if all are wanted."""
    for name in book.wanted(NAMES):
        plain = book.known.plain.get(name)
        if plain is not None and (are_all or name not in book.known.predicted):
            book.need(_LEAST_S)
            traced = trace_step(train_step(create(name)))
            step = as_timed(traced.trace, traced, plain)
            book.set_predicted(name, step, _captured_step(name, plain))


def _captured_step(name: str, plain: PlainRun) -> StepTrace | None:
    """Return a network's step as it is captured, where its optimizers have a switch for that."""
    training = create(name)
    if not make_capturable(training):
        return None
    with ExitStack() as patches:
        for module in [each for key, each in sys.modules.items() if key.startswith("torch.optim.")]:
            if hasattr(module, "_get_capturable_supported_devices"):  # the CPU is none
                allowed = mock.patch.object(
                    module, "_get_capturable_supported_devices", return_value=["cpu", "cuda"]
                )
                patches.enter_context(allowed)
        traced = trace_step(train_step(training))
    return as_timed(traced.trace, traced, plain)


def predict_again(book: Book) -> None:
    """Predict all that was measured, anew."""
    predict_networks(book, are_all=True)
    with Launcher() as launcher:
        for name in book.wanted([case for case in CASES if case in book.known.plain]):
            with _study(book, name, launcher) as study:
                traced = study.runner.record()
            plain = book.known.plain[name]
            book.set_predicted(name, as_timed(traced.trace, traced, plain))


def programs_at(step: StepTrace, captured: StepTrace | None = None) -> dict[str, Program]:
    """Return a step with its kernels, by where it runs.

    Args:
        step: The step as it is written.
        captured: As it is captured, where that is another step.
    """
    costs = StepCosts(efficiencies=load_efficiencies(), effects=load_step_effects())
    program = build_program(step, costs=costs)
    compiled = program.edited(compiled_step(program, CompileMode.REDUCE_OVERHEAD).edit)
    replayed = build_program(captured, costs=costs) if captured else program
    return {EAGER: program, CAPTURED: replayed, COMPILED: compiled}


def predicted_cells(
    known: Known, name: str, step: StepTrace, captured: StepTrace | None
) -> dict[str, Cells]:
    """Return what is predicted of a step on a GPU of which no calibration is known."""
    plain, program = known.plain[name], build_program(step)
    cpu = measured_result(plain, DeviceKind.CPU)
    device = find_device(known.device)
    programs = programs_at(step, captured)
    # A case runs as it is written alone.
    wheres = (EAGER, CAPTURED, COMPILED) if name in NETWORKS else (EAGER,)
    cells: dict[str, Cells] = {where: {} for where in wheres}
    for where, some in cells.items():
        for seen, host in known.hosts.items():
            fed_by = host_for_prediction(program, plain, host_called(AUTO, host), host)
            (found,) = predict_steps(
                programs[where], [device], fed_by, is_captured=where == CAPTURED
            )
            some[f"{seen}_ms"] = _ms(found.estimate.value_ns)
            some[f"{seen}_low_ms"] = _ms(found.estimate.low_ns)
            some[f"{seen}_high_ms"] = _ms(found.estimate.high_ns)
            some[f"{seen}_choice"] = decide((cpu, device_result(found))).choice.value
    return cells


def measure_cases(book: Book) -> None:
    """Run the cases as `check` does: recorded, on the CPU, and on the GPU."""
    with Launcher() as launcher:
        for name in book.wanted(CASES):
            if book.has(name, EAGER):
                continue
            book.need(_LEAST_CASE_S)
            try:
                with _study(book, name, launcher) as study:
                    _measure_case(book, name, study)
            except BreakevenError as error:
                for where in (CPU, EAGER):
                    book.add(CASE, name, where, lambda e=error: {"note": reason_of(e)})


def _study(book: Book, name: str, launcher: Launcher) -> AbstractContextManager[Study]:
    return start_study(
        str(_SCRIPTS / f"{name}.py"),
        devices=select_devices([book.known.device or _STANDS_FOR]),
        launcher=launcher,
        budget_s=_CASE_S,
        time_limit_s=min(_CASE_LIMIT_S, book.left_s()),
    )


def _measure_case(book: Book, name: str, study: Study) -> None:
    step = measure_target(study.runner)
    book.add(CASE, name, CPU, lambda: _plain_cells(book, name, step.plain))
    book.set_predicted(name, step.program.trace)
    book.add(CASE, name, EAGER, lambda: _on_gpu(book, study))
    num_reads = len(step.traced.trace.syncs)
    reason = f"not captured: a script's own loop, reads in a step: {num_reads}"
    book.add(CASE, name, CAPTURED, lambda: {"note": reason})
    book.add(CASE, name, COMPILED, lambda: {"note": "not compiled: the script does not ask for it"})


def _on_gpu(book: Book, study: Study) -> Cells:
    request = msgspec.structs.replace(study.runner.request, on_gpu=True, has_cuda=False)
    run = study.launcher.run(request)
    if isinstance(run, RunFailure):
        raise BreakevenError(f"{run.kind.value}: {run.exception} {run.message}")
    assert isinstance(run, PlainRun)
    if run.processor == study.here.name and not book.is_dry:
        raise BreakevenError("the script stayed on the CPU")
    return _run_cells(run)


def main(argv: Sequence[str] | None = None) -> int:
    """Do one stage; return 0 when all of it is done."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("stage")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--until", type=float, default=0.0, help="seconds since 1970")
    parser.add_argument("--only", action="append", help="network or case")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--again", action="store_true", help="also what ended the process before")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    if args.stage == "compile":
        compiled_cells(args.only[0], DeviceTimer(torch.device("cuda", 0)))
        return 0
    book = Book(args)
    stages: dict[str, Callable[[], None]] = {
        "gpu": lambda: measure_on_gpu(book),
        "cpu": lambda: measure_on_cpu(book),
        "first compiled": lambda: measure_compiled(book, FIRST),
        "cases": lambda: measure_cases(book),
        "compiled": lambda: measure_compiled(book, NAMES),
        "predict": lambda: predict_again(book),
    }
    try:
        stages[args.stage]()
    except (TimeOverError, KeyboardInterrupt):
        return TIME_OVER
    return 0


if __name__ == "__main__":
    sys.exit(main())
