"""SYNC: the host waits for the device."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from functools import partial

from breakeven.advise.events import bare_name, line_of, lines_where
from breakeven.advise.rule import (
    Match,
    Matches,
    RuleInput,
    by_line,
    num_copies,
    once,
    rule,
    times_per_step,
    without,
)
from breakeven.advise.transfers import (
    NUMBER_BYTES,
    TENSOR_READS,
    feeds_simulator,
    is_beside_clock,
    is_whole_read,
    memory_writers,
    round_trips,
)
from breakeven.source import (
    COMPREHENSIONS,
    SourceFile,
    arguments_of,
    is_constant,
    keyword,
    last_name,
    nodes_in,
    reached_by,
    spans,
    used_names,
)
from breakeven.trace import Copy, Event, HostWork, Location, Op, Phase, Sync
from breakeven.units import format_bytes, format_duration

_EXPLICIT = frozenset({"synchronize", "empty_cache"})
_SIZES = frozenset({"nonzero", "mask", "unique", "repeat_interleave", "bincount", "coalesce"})
_LOGGERS = ("torch.utils.tensorboard", "tensorboardX", "tensorboard", "wandb", "mlflow")
# Libraries that wait for reasons of their own: their users have no line to change.
_LIBRARIES = (
    "accelerate", "deepspeed", "diffusers", "fairscale", "fastai", "ignite", "lightning", "peft",
    "pytorch_lightning", "safetensors", "timm", "torch.amp", "torch.autograd", "torch.cuda.amp",
    "torch.distributed", "torch.nn.modules", "torch.nn.parallel", "torch.optim",
    "torch.serialization", "torch.utils.checkpoint", "torch.utils.data", "torch_geometric",
    "torchaudio", "torchdiffeq", "torchvision", "transformers", "trl",
)  # fmt: skip
_NORMS = frozenset({"linalg_vector_norm", "norm", "frobenius_norm", "pow", "square"})
# Up to this many rows, torch.linalg on a GPU has a worse problem than its error check.
_SMALL_MATRIX = 64
# Operators that add a value to a moving average, within _NEAR events after its read.
_AVERAGING = frozenset({"add", "lerp", "copy"})
_NEAR = 4
# Minimum number of parameters that a loop over parameters reads.
_MIN_LOOP = 2


class Wait(Enum):
    """The reason why the host waits.

    ``HOST_PART`` is a copy to host work with gradients, ``LOGGED`` a value that Lightning shows.
    ``NEEDED`` belongs to no rule: a library's own wait, a saved checkpoint, a clock reading, or a
    simulator's input.
    """

    VALUE = auto()
    EXPLICIT = auto()
    SIZE = auto()
    TENSOR = auto()
    TRUTH = auto()
    NORMS = auto()
    DISTRIBUTION = auto()
    LOG = auto()
    ROUND_TRIP = auto()
    HOST_PART = auto()
    LOGGED = auto()
    NEEDED = auto()


_LOOPED = (Wait.NORMS, Wait.LOG)
# Waits of libraries that have a separate rule.
_BY_LIBRARY = (
    (Wait.DISTRIBUTION, ("torch.distributions",)),
    (Wait.NORMS, ("torch.nn.utils.clip_grad",)),
    (Wait.TENSOR, ("torchmetrics", "sklearn", "ignite.metrics", "evaluate")),
)


@once
def waits(case: RuleInput) -> Mapping[int, Wait]:
    """Return the reason for the wait at each sync, by position."""
    trips = {read for trip in round_trips(case) for read in trip.reads}
    # The gradients of the read values come back: the backward pass uploads them.
    back = lines_where(
        case.trace,
        lambda e: isinstance(e, Copy) and e.is_to_device and e.phase is Phase.BACKWARD,
    )
    syncs, found = dict(case.each(Sync)), dict[int, Wait]()
    for index, sync in syncs.items():
        is_of_host_part = sync.phase is Phase.BACKWARD or line_of(sync) in back
        if index in trips:
            found[index] = Wait.ROUND_TRIP
        elif sync.kind in TENSOR_READS and is_of_host_part:
            found[index] = Wait.HOST_PART
        else:
            found[index] = _wait(case, index, sync)
    # Each wait has one cause. A single norm of one tensor is a number like the loss; a loop reads
    # one for each parameter. A number read at a line where a loop, a metric or a log waits anyway
    # is part of that wait.
    counts = Counter((wait, line_of(syncs[index])) for index, wait in found.items())
    for index, wait in found.items():
        sync, line = syncs[index], line_of(syncs[index])
        if wait in _LOOPED and counts[wait, line] < _MIN_LOOP and not sync.via:
            wait = Wait.VALUE if sync.num_bytes <= NUMBER_BYTES else Wait.TENSOR
        if wait is Wait.VALUE:
            others = [own for own in _LOOPED if counts[own, line] >= _MIN_LOOP]
            others += [Wait.TENSOR] if counts[Wait.TENSOR, line] else []
            wait = next(iter(others), wait)
        found[index] = wait
    return found


def waits_of(case: RuleInput, *wanted: Wait) -> list[int]:
    """Return the positions of the syncs with one of these reasons."""
    return [index for index, wait in waits(case).items() if wait in wanted]


def _wait(case: RuleInput, index: int, sync: Sync) -> Wait:
    is_at = partial(case.sources.is_at, sync.location)
    before = case.trace.events[index - 1] if index else None
    is_nan_test = isinstance(before, Op) and bare_name(before) == "_is_any_true"
    is_after_node = sync.phase is Phase.BACKWARD and sync.num_bytes == 1
    if is_after_node and (is_nan_test or case.facts.is_anomaly_checked):
        return Wait.NEEDED  # autograd looks for NaN, which has a separate rule
    if sync.kind in _EXPLICIT:
        return Wait.NEEDED if is_at(is_beside_clock) else Wait.EXPLICIT
    for wait, libraries in _BY_LIBRARY:
        if _is_via(sync, *libraries):
            return wait
    if _is_via(sync, *_LOGGERS):
        return Wait.LOG if sync.num_bytes > NUMBER_BYTES else Wait.VALUE
    if _is_via(sync, "lightning", "pytorch_lightning") and sync.kind in ("item", "float"):
        return Wait.LOGGED
    if _is_via(sync, *_LIBRARIES) or is_at(feeds_simulator):
        return Wait.NEEDED
    following = case.trace.events[index + 1 : index + 1 + _NEAR]
    names = [
        bare_name(e) for e in following[:3] if isinstance(e, Op) and line_of(e) == line_of(sync)
    ]
    # `one_hot` needs the number of classes, then scatters into zeros.
    if sync.kind in _SIZES or (names[:1] == ["zeros"] and "scatter" in names):
        return Wait.SIZE
    if sync.kind == "linalg":
        return Wait.NEEDED if _is_small_matrix(case, index) else Wait.VALUE
    # A value or tensor that the script itself reads.
    origins = memory_writers(case)
    passed, source = origins.origin(sync.storage, index)
    is_of_parameter = source in origins.updated
    if is_whole_read(sync):
        if case.sources.call_at(sync.location, "pack_padded_sequence") is not None:
            return Wait.NEEDED  # lengths, which torch requires on the host
        if is_of_parameter or is_at(_is_in_parameter_loop):
            # An average on the host is no log.
            return Wait.TENSOR if any(map(_is_average, following)) else Wait.LOG
        return Wait.TENSOR
    if sync.kind in ("bool", "equal") or sync.num_bytes == 1:
        return Wait.TRUTH
    is_of_parameter = is_of_parameter or is_at(_is_in_parameter_loop)
    if passed & _NORMS and (is_of_parameter or sync.storage == -1):
        return Wait.NORMS
    return Wait.LOG if is_of_parameter and passed else Wait.VALUE


def _is_in_parameter_loop(source: SourceFile, line: int) -> bool:
    """Return whether the line is repeated for each parameter.

    Gradients read after the update belong to the previous step, so the optimizer's memory does not
    contain them.
    """
    return any(
        node.attr in ("parameters", "named_parameters")
        for loop in source.loops_around(line)
        if not isinstance(loop, ast.While)
        for header in (loop.generators if isinstance(loop, COMPREHENSIONS) else [loop])
        for node in nodes_in(header.iter, ast.Attribute)
    )


def _is_average(event: Event) -> bool:
    """Return whether a host operator adds to a host tensor, or copies into one."""
    return (
        isinstance(event, Op)
        and event.is_on_host
        and bare_name(event) in _AVERAGING
        and any(tensor.numel > 1 for tensor in event.inputs)
    )


def _is_small_matrix(case: RuleInput, index: int) -> bool:
    before = case.trace.events[:index][::-1]
    if not before or not isinstance(before[0], Op):
        return False
    # The check gets one number for each matrix; the previous operator has the matrix sizes.
    shapes = (e.inputs[0].shape for e in before if isinstance(e, Op) and e.inputs)
    return next((shape[-1] <= _SMALL_MATRIX for shape in shapes if len(shape) > 1), False)


def _is_via(sync: Sync, *libraries: str) -> bool:
    return f"{sync.via}.".startswith(tuple(f"{name}." for name in libraries))


# Fixes by the use of a value, most specific first: for one read, and for many.
_ALL_AT_ONCE = "read all of them at once before the loop: .tolist()"
_FIXES = {
    "slice": (
        "work out sizes and limits of slices on the CPU, before the batch is copied",
        f"{_ALL_AT_ONCE}; or cut all slices at once, with tensors as indices",
    ),
    "index": (
        "index with the tensor itself: x[i], not x[i.item()]",
        f"index with the whole tensor, once for all; or {_ALL_AT_ONCE}",
    ),
    "branch": (
        "decide on the GPU with torch.where, or test every n-th step",
        f"{_ALL_AT_ONCE}; or decide for all of them at once with torch.where",
    ),
    "limit": ("give torch.clamp the tensor itself as its limit",) * 2,
}
# From this number of reads on one line, a loop within the line makes them.
_MANY_READS = 8
_READS = frozenset({"item", "tolist", "cpu", "numpy", "float", "int", "bool"})
_CALLS = {
    "slice": ("range", "arange", "zeros", "ones", "empty", "full", "view", "reshape", "expand"),
    "limit": ("clamp", "clamp_", "clip", "clip_", "clip_grad_norm_", "clip_grad_value_"),
    "log": ("print", "append", "log", "info", "write", "update", "set_postfix", "add_scalar"),
}


def use_of(source: SourceFile, line: int, *, is_index: bool = False) -> str:
    """Return the use of a value that a line reads: ``slice``, ``index``, ``branch``, ...

    Args:
        source: The file.
        line: The line.
        is_index: Whether Python reads the value as an integer, without a call: ``x[:n]``.
    """
    found: set[str] = set()
    for statement, made in reached_by(source, line):
        is_here = spans(statement, line)

        def carries(*nodes: ast.AST, made: set[str] = made, is_here: bool = is_here) -> bool:
            """Return whether nodes contain the value or a result of it."""
            calls = (last_name(call.func) for node in nodes for call in nodes_in(node, ast.Call))
            is_read = is_here and (is_index or not _READS.isdisjoint(calls))
            return is_read or bool(made & used_names(*nodes))

        block = source.parent(statement)
        if isinstance(block, ast.If | ast.While) and block.test is statement and carries(statement):
            found.add("branch")
        for node in ast.walk(statement):
            match node:
                case ast.Subscript(slice=part) if carries(part):
                    found.add("slice" if any(nodes_in(part, ast.Slice)) else "index")
                case ast.IfExp(test=test) | ast.Assert(test=test) | ast.comprehension(ifs=[test]):
                    found.update(("branch",) if carries(test) else ())
                case ast.Call() if carries(*arguments_of(node)):
                    found.update(use for use, names in _CALLS.items() if last_name(node) in names)
                case ast.AugAssign(value=value) | ast.FormattedValue(value=value) if carries(value):
                    found.add("log")
                case _:
                    pass
    return next((use for use in (*_FIXES, "log") if use in found), "")


def syncs_by_line(
    case: RuleInput, found: list[int], *, title: str, fix: str, is_by_use: bool = False
) -> Matches:
    """Yield one match for each line, with a fix that removes these events.

    Args:
        case: The step.
        found: Positions of syncs and of host work.
        title: One line, with ``{often}`` as the place of the frequency.
        fix: The change to make.
        is_by_use: Whether the use of the read value may suggest another fix.
    """
    for location, events in by_line(case.trace, found):
        fit, source = fix, case.sources.find(location)
        if is_by_use and source is not None and location is not None:
            members = (case.trace.events[index] for index in events)
            kinds = {event.kind for event in members if isinstance(event, Sync)}
            use = use_of(source, location.line, is_index=kinds == {"int"})
            use = "branch" if "bool" in kinds else use
            is_many = len(events) >= _MANY_READS
            if is_many and (not use or not kinds.isdisjoint(TENSOR_READS)):
                fit = _ALL_AT_ONCE
            elif use in _FIXES:
                fit = _FIXES[use][is_many]
        yield waiting_at(case, location, events, title=title, fix=fit)


def waiting_at(
    case: RuleInput, location: Location | None, events: Iterable[int], *, title: str, fix: str
) -> Match:
    """Return the match of the waits at one line; texts are as in `syncs_by_line`."""
    gone = tuple(sorted(events))
    return Match(
        title=title.format(often=times_per_step(len(gone))),
        fix=fix,
        evidence=seen(case, events),
        location=location,
        events=gone,
        edit=without(gone),
    )


def seen(case: RuleInput, events: Iterable[int]) -> str:
    """Return the observed waits in words: kinds, bytes, and readers."""
    members = [case.trace.events[index] for index in events]
    syncs = [event for event in members if isinstance(event, Sync)]
    works = [event for event in members if isinstance(event, HostWork)]
    kinds = ", ".join(dict.fromkeys(sync.kind for sync in syncs))
    num_bytes = sum(sync.num_bytes for sync in syncs)
    via = ", ".join(dict.fromkeys(sync.via for sync in syncs if sync.via))
    host_ns = sum(work.duration_ns for work in works)
    parts = {
        f"{len(syncs)} wait{'s' * (len(syncs) > 1)} in the recorded step ({kinds})": syncs,
        f"{format_bytes(num_bytes)} read back": num_bytes,
        f"within {via}": via,
        f"{format_duration(host_ns, 2)} of the host in the recorded step": works,
    }
    return ", ".join(text for text, is_there in parts.items() if is_there)


@rule("SYNC001", "SYNC_ITEM")
def value_reads(case: RuleInput) -> Matches:
    # Lightning reads the values of its progress bar from its own loop, in the order of logging.
    reads = waits_of(case, Wait.LOGGED)
    lines = [
        source.location(call)
        for source, call in case.sources.calls("self.log", "self.log_dict")
        if is_constant(keyword(call, "prog_bar"), True)
    ]
    for position, location in enumerate(lines):
        if events := tuple(reads[position :: len(lines)]):
            yield waiting_at(
                case,
                location,
                events,
                title="the progress bar of Lightning reads a value from the GPU {often}",
                fix="prog_bar=False, or TQDMProgressBar(refresh_rate=50)",
            )
    found = set(waits_of(case, Wait.VALUE))
    checks = {index for index, sync in case.each(Sync) if index in found and sync.kind == "linalg"}
    yield from syncs_by_line(
        case,
        sorted(found - checks),
        title="the host reads a value from the GPU {often}",
        fix="keep the value on the GPU (total += loss.detach()) and read it every n-th step",
        is_by_use=True,
    )
    yield from syncs_by_line(
        case,
        sorted(checks),
        title="torch.linalg waits for the GPU {often} to check its error code",
        fix="use the variants without this check: torch.linalg.cholesky_ex, inv_ex, solve_ex",
    )


@rule("SYNC002", "SYNC_EXPLICIT")
def explicit_waits(case: RuleInput) -> Matches:
    yield from syncs_by_line(
        case,
        waits_of(case, Wait.EXPLICIT),
        title="the script waits for the GPU explicitly {often}",
        fix="remove torch.cuda.synchronize() and empty_cache() from the loop",
    )
    yield from syncs_by_line(
        case,
        case.works("gc"),
        title="the script collects garbage {often}",
        fix="remove gc.collect() from the loop, or call it once per epoch",
    )


@rule("SYNC003", "SYNC_SHAPE")
def sizes_by_values(case: RuleInput) -> Matches:
    return syncs_by_line(
        case,
        waits_of(case, Wait.SIZE),
        title="the size of a result depends on values, so the host waits for the GPU {often}",
        fix="keep sizes fixed: torch.where, weights of 0, ignore_index instead of a mask",
    )


@rule("SYNC004", "SYNC_METRICS")
def tensor_reads(case: RuleInput) -> Matches:
    return syncs_by_line(
        case,
        waits_of(case, Wait.TENSOR),
        title="the host reads a tensor from the GPU {often}",
        fix="compute metrics on the GPU and read them once per epoch",
        is_by_use=True,
    )


@rule("SYNC005", "SYNC_BRANCH")
def branches(case: RuleInput) -> Matches:
    return syncs_by_line(
        case,
        waits_of(case, Wait.TRUTH),
        title="Python branches on a value of the GPU {often}",
        fix="decide on the GPU with torch.where, or test every n-th step",
        is_by_use=True,
    )


@rule("SYNC006", "SYNC_CLIP")
def norm_reads(case: RuleInput) -> Matches:
    return syncs_by_line(
        case,
        waits_of(case, Wait.NORMS),
        title="the host reads norms of parameters or gradients {often}",
        fix="torch.nn.utils.clip_grad_norm_ or get_total_norm, and read the total every n-th step",
    )


@rule("SYNC007", "SYNC_DIST")
def distribution_checks(case: RuleInput) -> Matches:
    found = by_line(case.trace, waits_of(case, Wait.DISTRIBUTION))
    # Report waits of methods at the line that last made a distribution.
    makers = {
        line_of(location): location
        for location, _ in found
        if case.sources.is_at(location, _makes_distribution)
    }
    grouped: dict[tuple[str, int] | None, tuple[Location | None, list[int]]] = {}
    for location, events in found:
        if makers and line_of(location) not in makers:
            earlier = map(line_of, reversed(case.trace.events[: events[0] + 1]))
            location = makers[next((one for one in earlier if one in makers), next(iter(makers)))]
        grouped.setdefault(line_of(location), (location, []))[1].extend(events)
    for location, events in grouped.values():
        yield waiting_at(
            case,
            location,
            events,
            title="torch.distributions checks its arguments on the GPU, and the host waits {often}",
            fix="validate_args=False, or Distribution.set_default_validate_args(False) once",
        )


def _makes_distribution(source: SourceFile, line: int) -> bool:
    """Return whether the line calls a class, judged by its name: ``Normal(...)``."""
    return any(last_name(call)[:1].isupper() for call in source.calls_on(line))


@rule("SYNC008", "LOG_HEAVY")
def heavy_logging(case: RuleInput) -> Matches:
    return syncs_by_line(
        case,
        sorted((*waits_of(case, Wait.LOG), *case.works("log"))),
        title="weights, gradients or images are logged {often}",
        fix="log them every n-th step",
    )


@rule("SYNC009", "CPU_ROUNDTRIP")
def round_trip_reads(case: RuleInput) -> Matches:
    on_host = {*case.works("script"), *(index for index, op in case.each(Op) if op.is_on_host)}
    for location, reads, copies in round_trips(case):
        between = on_host.intersection(range(min(reads), max(copies)))
        events = tuple(sorted({*reads, *copies, *between}))
        yield Match(
            title="the host computes on a tensor of the GPU and copies the result back "
            f"{times_per_step(len(reads))}",
            fix="compute it in torch on the GPU, or for the whole batch with one copy each way",
            evidence=f"{seen(case, reads)}, then {num_copies(len(copies))} of younger memory to "
            "the GPU before the backward pass",
            location=location,
            events=events,
            edit=without(events),
        )
