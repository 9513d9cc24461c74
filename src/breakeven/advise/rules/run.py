"""RUN: the way the script runs its steps."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from breakeven.advise.events import common_start, line_of, read_by, written_by
from breakeven.advise.rule import KnownGain, Match, Matches, RuleInput, rule, without
from breakeven.advise.source_lines import recorded_calls
from breakeven.source import (
    LOOP_STATEMENTS,
    SourceFile,
    declared_names,
    dotted_name,
    last_name,
    own_nodes,
    written_names,
)
from breakeven.trace import Copy, HostWork, Location, ModelCall, Op, Phase, StepTrace, Sync
from breakeven.units import format_bytes, format_duration

# Operators that autograd runs on every gradient to look for NaN.
_ANOMALY_OPS = re.compile(r"^aten\.(isnan|_is_any_true)\.")


@rule("RUN001", "ANOMALY")
def anomaly_checks(case: RuleInput) -> Matches:
    if not case.facts.is_anomaly_checked:
        return
    # The checks of the backward pass: two operators, and the wait for their result.
    answers: set[int] = set()
    checks: list[int] = []
    for index, event in enumerate(case.trace.events):
        if isinstance(event, Op):
            if event.phase is Phase.BACKWARD and _ANOMALY_OPS.match(event.name):
                checks.append(index)
                answers |= written_by([event])
        elif isinstance(event, Sync) and (event.storage in answers or checks[-1:] == [index - 1]):
            checks.append(index)
    calls = recorded_calls(case, "set_detect_anomaly", "detect_anomaly")
    switches = (call.location for call in calls if call.argument != "False" and call.location)
    yield Match(
        title="autograd looks for invalid values in every backward pass",
        fix="remove set_detect_anomaly(True); switch it on to look for a fault only",
        evidence=f"anomaly detection is on; {len(checks)} operators and waits of the "
        "step are its own",
        location=next(switches, None),
        events=tuple(checks),
        edit=without(checks) if checks else None,
    )


@rule("RUN002", "DATAPARALLEL")
def data_parallel(case: RuleInput) -> Matches:
    for call in recorded_calls(case, "DataParallel"):
        yield Match(
            title="nn.DataParallel copies the model to every GPU in every step",
            fix="one GPU for a small model; DistributedDataParallel for a large one",
            evidence="the model is wrapped in torch.nn.DataParallel",
            location=call.location,
        )


_MIN_SHARE_FRACTION = 0.05

# Names of evaluation code: `evaluate`, `val_loader`, `x_test`, `accuracy_of`.
_EVALUATES = re.compile(
    r"(?:^|[^a-z])(?:eval\w*|val|valid\w*|test|holdout|heldout|accuracy|acc|metrics?)(?:$|[^a-z])",
    re.IGNORECASE,
)
# Names of code that needs the model's output to continue: `act`, `select_action`, `rollout`.
_ACTS = re.compile(
    r"(?:^|[^a-z])(?:acts?|actions?|acting|rollouts?|explore\w*|sampl\w*|generate\w*|self_?play)"
    r"(?:$|[^a-z])",
    re.IGNORECASE,
)


@rule("RUN003", "EVAL_OFTEN")
def frequent_evaluation(case: RuleInput) -> Matches:
    trace, calls = case.trace, case.facts.model_calls
    trained = next((call for call in calls if call.is_used_in_backward), None)
    if trained is None:
        return
    way = _stack(trace, trained)
    found: dict[tuple[str, int] | None, list[ModelCall]] = {}
    places: dict[tuple[str, int] | None, Location | None] = {}
    # Follow calls from the same stack and line together.
    groups: dict[tuple[int, Location | None], list[ModelCall]] = {}
    for call in calls:
        if not call.is_used_in_backward and _is_meant(case, call):
            groups.setdefault((call.stack, call.location), []).append(call)
    for group in groups.values():
        following = (trace.events[i] for i, follows in _following(trace, group).items() if follows)
        phases = {event.phase for event in following if isinstance(event, Op)}
        if phases.isdisjoint((Phase.BACKWARD, Phase.OPTIMIZER)):
            # The line where the stack of the evaluation leaves that of the training.
            own = _stack(trace, group[0])
            shared = len(common_start([tuple(map(line_of, own)), tuple(map(line_of, way))]))
            place = own[shared] if shared < len(own) else group[0].location
            places[line_of(place)] = place
            found.setdefault(line_of(place), []).extend(group)
    for line, own in found.items():
        # A line that starts a trainer's loop also leads to the training.
        below = None if line in map(line_of, way) else line
        following = _following(trace, own)
        events = tuple(
            index
            for index, event in enumerate(trace.events)
            if index in following or (below and below in map(line_of, trace.stack_of(event)))
        )
        if len(events) < _MIN_SHARE_FRACTION * len(trace.events):
            continue
        records = " and recorded for a backward pass" if any(call.has_grad for call in own) else ""
        often = "" if len(own) == 1 else f" {len(own)} times"
        yield Match(
            title=f"{own[0].model} is evaluated{often} in every training step{records}",
            fix="evaluate once per epoch or every n-th step, under torch.no_grad()",
            evidence=f"{len(events)} of {len(trace.events)} events of the step belong to "
            "forward passes without gradients",
            location=places[line],
            events=events,
            edit=without(events),
        )


def _is_meant(case: RuleInput, call: ModelCall) -> bool:
    """Return whether a call looks like an evaluation, by names and the model's mode."""
    words = [location.function for location in _stack(case.trace, call)]
    source = case.sources.find(call.location)
    if source is not None and call.location is not None:
        words += source.lines[call.location.line - 1 : call.location.line]
    is_acting = any(map(_ACTS.search, words))
    return any(map(_EVALUATES.search, words)) or (not call.is_training and not is_acting)


def _stack(trace: StepTrace, call: ModelCall) -> tuple[Location, ...]:
    if 0 <= call.stack < len(trace.stacks):
        return trace.stacks[call.stack]
    return (call.location,) if call.location else ()


def _following(trace: StepTrace, calls: Sequence[ModelCall]) -> dict[int, bool]:
    """Return the events of calls (False), and the events that depend on their results (True).

    Args:
        trace: The step.
        calls: Model calls.
    """
    found = dict.fromkeys((index for call in calls for index in _range(call)), False)
    first = min(found, default=len(trace.events))
    known, made = set[int](), set[int]()
    for index, event in enumerate(trace.events):
        if isinstance(event, Op):
            reads, writes = read_by([event]), written_by([event]) - read_by([event])
        else:
            storage = event.storage if isinstance(event, Sync | Copy) else -1
            reads, writes = frozenset({storage}) - {-1}, frozenset[int]()
        if index in found:
            # A view shares memory that existed before, so the call did not make it.
            made |= writes - known
        elif index > first and not made.isdisjoint(reads):
            found[index] = True
            made |= writes
        known |= reads | writes
    return found


def _range(call: ModelCall) -> range:
    return range(call.first_event, call.first_event + call.num_events)


# Below this fraction of the step, saving is not worth a change.
_MIN_SAVE_FRACTION = 0.05

# A single save may belong to every thousandth step, starting with step 0.
_MIN_SAVES = 2


@rule("RUN004", "CKPT_OFTEN")
def frequent_checkpoints(case: RuleInput) -> Matches:
    num_steps = case.facts.num_steps
    for call in recorded_calls(case, "save"):
        if call.step_count < _MIN_SAVES or not call.count:
            continue
        own = {
            index: work.duration_ns
            for index, work in case.each(HostWork)
            if work.kind == "save" and work.location == call.location
        }
        if own:
            saving_ns = float(sum(own.values()))
            share = saving_ns / case.step_ns
        else:
            # The recorded step did not save.
            saving_ns = call.duration_ns / call.count * call.step_count / num_steps
            share = saving_ns / (case.step_ns + saving_ns)
        if share < _MIN_SAVE_FRACTION:
            continue
        yield Match(
            title=f"saving takes {format_duration(saving_ns, 2)} per step",
            fix="save by time, or after many steps",
            evidence=f"torch.save in {call.step_count} of {num_steps} recorded steps",
            location=call.location,
            events=tuple(own),
            share_fraction=share,
            edit=without(own) if own else None,
            gain=KnownGain(fraction=share, low_fraction=share / 2, high_fraction=share),
        )


# Calls that return a number or a tensor without history.
_DETACHING = frozenset({"item", "detach", "tolist", "numpy", "float", "int", "str", "format"})
_ENDS_HISTORY = frozenset({"data", "grad", "shape", "dtype", "device"})
# Methods whose result a trainer passes to backward() itself.
_STEP_METHODS = frozenset({"training_step", "compute_loss"})
_Kept = tuple[ast.stmt, str, str]


@rule("RUN005", "GRAPH_RETAINED")
def retained_graphs(case: RuleInput) -> Matches:
    live = case.facts.live_bytes
    growth = ""
    if len(live) > 2 and list(live) == sorted(set(live)):
        growth = f"; live memory grew by {format_bytes(live[-1] - live[0])} in {len(live)} steps"
    for source in case.sources:
        for statement, target, value in _kept(source):
            yield Match(
                title=f"{target} keeps the graph of {value} alive in every step",
                fix=f"add {value}.detach() instead",
                evidence=f"{value} has a history here, and {target} outlives the step{growth}",
                location=source.location(statement),
            )


def _kept(source: SourceFile) -> Iterator[_Kept]:
    """Yield statements that keep a graph, with the names of the container and of the tensor."""
    functions = list(source.nodes(ast.FunctionDef))
    # Functions that run a step and return its loss with history.
    makers = {one.name for one in functions if _returned(one) & _losses(one, set())}
    for loop in source.nodes(*LOOP_STATEMENTS):
        inner, losses = list(own_nodes(loop, *LOOP_STATEMENTS)), _losses(loop, makers)
        around = [one for one in source.parents(loop) if isinstance(one, LOOP_STATEMENTS)]
        # A step is an iteration of the innermost loop that updates; if no update is visible, of the
        # innermost loop that calls backward().
        if _updates(loop, makers):
            is_step = not any(_updates(one, makers) for one in inner)
        else:
            others = any(_losses(one, makers) for one in inner)
            is_step = not others and not any(_updates(one, makers) for one in around)
        for statement, target, value in _keepers(source, loop, losses) if is_step else ():
            if not _is_reset(loop, statement, target):
                yield statement, target, value
    for function in functions:
        losses = _losses(function, set())
        losses |= _returned(function) if function.name in _STEP_METHODS else set()
        own = written_names(function) - declared_names(function)
        for statement, target, value in _keepers(source, function, losses):
            # Values added to an attribute, or to a list from outside, outlive the step.
            if _root(target) not in own and not source.is_in_loop(statement):
                yield statement, target, value


def _losses(scope: ast.AST, makers: set[str]) -> set[str]:
    """Return the expressions with the history of a step: names, and calls of ``makers``."""
    found: set[str] = set()
    for call in own_nodes(scope, ast.Call):
        if last_name(call) in makers:
            found.add(ast.unparse(call))
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "backward":
            inside = call.func.value
            # `scaler.scale(loss).backward()`, `accelerator.backward(loss)`.
            given = inside.args if isinstance(inside, ast.Call) else [*call.args, inside]
            found.update(map(ast.unparse, given))
    for node in own_nodes(scope, ast.Assign):
        name = ast.unparse(node.targets[0])
        if isinstance(node.value, ast.Call) and last_name(node.value) in makers:
            found.add(name)
        elif name in found & _names(node.value) and any(
            last_name(one) in _DETACHING for one in ast.walk(node.value)
        ):
            found.discard(name)  # `loss = loss.item()`
    return found


def _returned(function: ast.FunctionDef) -> set[str]:
    values = [node.value for node in own_nodes(function, ast.Return)]
    parts = (one.values if isinstance(one, ast.Dict) else [one] for one in values)
    return {one.id for part in parts for one in part if isinstance(one, ast.Name)}


def _updates(loop: ast.AST, makers: set[str]) -> bool:
    return any(last_name(call) in {"step", *makers} for call in own_nodes(loop, ast.Call))


def _keepers(source: SourceFile, scope: ast.AST, losses: set[str]) -> Iterator[_Kept]:
    """Yield statements of a scope that add one of ``losses`` to a sum or a list."""
    for node in sorted(own_nodes(scope, ast.stmt), key=lambda one: one.lineno):
        target, added = "", []
        if isinstance(node, ast.AugAssign):
            target, added = ast.unparse(node.target), [node.value]
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
            target, added = ast.unparse(node.targets[0]), [node.value]
            added = added if target in _names(node.value) else []
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            target, _, method = ast.unparse(node.value.func).rpartition(".")
            added = node.value.args if method in ("append", "extend") else []
        value = next(filter(None, (_with_history(one, losses) for one in added)), "")
        if value and target not in losses and not _is_without_history(source, node):
            yield node, target, value


def _with_history(node: ast.AST, names: set[str]) -> str:
    """Return one of ``names`` that enters an expression's value with its history."""
    waiting = [node]
    while waiting:
        part = waiting.pop()
        is_name = isinstance(part, (ast.Name, ast.Attribute, ast.Subscript, ast.Call))
        if is_name and (text := ast.unparse(part)) in names:
            return text
        is_end = isinstance(part, ast.Call) and last_name(part.func) in _DETACHING
        is_end = is_end or (isinstance(part, ast.Attribute) and part.attr in _ENDS_HISTORY)
        if not is_end and not isinstance(part, (ast.JoinedStr, ast.Compare, ast.Lambda)):
            waiting.extend(ast.iter_child_nodes(part))
    return ""


def _is_without_history(source: SourceFile, statement: ast.stmt) -> bool:
    """Return whether a statement is under ``torch.no_grad()``, so that nothing is recorded."""
    around = (block for block in source.parents(statement) if isinstance(block, ast.With))
    managers = (dotted_name(item.context_expr) for block in around for item in block.items)
    return any(name.endswith(("no_grad", "inference_mode")) for name in managers)


def _names(node: ast.AST) -> set[str]:
    names = (ast.Name, ast.Attribute, ast.Subscript)
    return {ast.unparse(part) for part in ast.walk(node) if isinstance(part, names)}


def _root(target: str) -> str:
    return target.partition(".")[0].partition("[")[0]


def _is_reset(loop: ast.AST, statement: ast.stmt, target: str) -> bool:
    """Return whether the loop resets the container, so that it cannot grow for long."""
    emptying = {f"{target}.clear", f"{target}.pop", f"{target}.zero_"}
    given = {
        name
        for node in own_nodes(loop, ast.Assign)
        if node is not statement and target not in _names(node.value)
        for name in _names(node.targets[0])
    }
    calls = {dotted_name(call) for call in own_nodes(loop, ast.Call)}
    return bool(calls & emptying) or target in given or _root(target) in given - {"self"}


@rule("RUN007", "HW_ENV")
def torch_without_cuda(case: RuleInput) -> Matches:
    if not case.facts.has_nvidia_device or case.facts.has_cuda_build:
        return
    version = f"torch {case.trace.torch_version}" if case.trace.torch_version else "torch"
    yield Match(
        title="this machine has an NVIDIA GPU, and its torch was built without CUDA",
        fix="install a build of torch with CUDA",
        evidence=f"{version} has no CUDA; an NVIDIA device is there",
    )
