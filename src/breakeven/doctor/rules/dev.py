"""DEV: what is not on the device, and what the source says about a GPU never used."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import PurePath

from msgspec.structs import replace

from breakeven.doctor.events import line_of, on_device, parameters_of
from breakeven.doctor.rule import Match, Matches, RuleInput, by_line, changed, rule
from breakeven.doctor.rules.sync import NEAR, Wait, is_average, waits_of
from breakeven.doctor.transfers import TensorSource, Upload, is_layer, made_on_host, uploads
from breakeven.simulate import Edit
from breakeven.source import (
    DEFINITIONS,
    LOOP_STATEMENTS,
    SourceFile,
    Sources,
    arguments_of,
    dotted_name,
    is_constant,
    keyword,
    last_name,
    nodes_in,
    spans,
    text_of,
)
from breakeven.trace import DeviceFault, Event, Location, Op, Phase
from breakeven.units import format_duration

_GPU = re.compile(r"(cuda|gpu)(:\d+)?")
_OPTION = re.compile(r"--?(no[-_])?(use[-_])?(cuda|gpus?|device|accelerator)([-_]ids?)?")
_QUERIES = ("is_available", "current_accelerator", "get_device_name", "device_count")
# Words in the names of modules, which move in place.
_MODULE_WORDS = (
    "model", "net", "module", "crit", "loss", "encoder", "decoder", "backbone", "head", "actor",
    "policy", "ema", "gen", "disc", "layer", "embed", "trainer", "metric", "self",
)  # fmt: skip
# What catches the error of a tensor on the wrong device.
_FAULTS = frozenset({"", "BaseException", "Exception", "RuntimeError", "TypeError"})
_SHOWING = ("print", "info", "debug", "warning", "write", "format")


def discarded_moves(sources: Sources) -> Iterator[Location]:
    """Yield lines that move a tensor and drop the result: ``x.to(device)`` as a statement.

    A module moves in place, so what a class was called for, or is named like one, is left out.
    """
    for source, node in sources.nodes(ast.Expr):
        call = node.value
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        receiver = call.func.value
        is_name = isinstance(receiver, (ast.Name, ast.Attribute, ast.Subscript))
        if not is_name or not _moves_to_gpu(source, call):
            continue
        name = dotted_name(receiver)
        is_made_by_class = any(
            own.name == name
            and isinstance(own.value, ast.Call)
            and last_name(own.value)[:1].isupper()
            for own in source.bindings
        )
        if not is_made_by_class and not any(word in name.lower() for word in _MODULE_WORDS):
            yield source.location(node)


def unused_choices(sources: Sources) -> Iterator[Location]:
    """Yield lines that choose a GPU and keep the choice under a name that nothing uses."""
    for source in sources:
        for node, name in _choices(source):
            if not any(_is_used(other, name) for other in sources):
                yield source.location(node)


def is_expected_to_fail(source: SourceFile, line: int) -> bool:
    """Return whether a ``try`` right around a line goes on with something else when it fails.

    One around a whole loop ends that loop, whatever it does then.
    """
    for node in source.nodes(ast.Try):
        inside = next((part for part in node.body if spans(part, line)), None)
        if inside is None or isinstance(inside, (*LOOP_STATEMENTS, *DEFINITIONS)):
            continue
        if any(map(_goes_on_after_fault, node.handlers)):
            return True
    return False


def _goes_on_after_fault(handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {"" if kind is None else dotted_name(kind) for kind in caught}
    return bool(names & _FAULTS) and not any(nodes_in(handler, ast.Raise))


def made_at(sources: Sources, module: str) -> Location | None:
    """Return the line that makes a part of a model: ``self.head = Head()``, or ``model = Net()``.

    Args:
        sources: The user's files.
        module: Dotted path: ``Net.encoder.head``, or ``Net`` for the whole.

    Returns:
        None where no or several lines do.
    """
    parts = [part for part in module.split(".") if not part.isdigit()]
    lines = {
        source.location(statement)
        for source, (statement, target, value) in sources.bindings()
        if (
            isinstance(value, ast.Call) and last_name(value.func) == module
            if len(parts) < 2
            else dotted_name(target).endswith(f".{parts[-1]}")
            and any(nodes_in(value, ast.Call))
            # That holds a place, which another module takes.
            and not dotted_name(value).endswith("Identity")
        )
    }
    return lines.pop() if len(lines) == 1 else None


def forced_to_cpu(sources: Sources) -> Iterator[Location]:
    """Yield settings of a trainer that keep it off a GPU: ``accelerator="cpu"``."""
    for source, call in sources.calls("Trainer", "TrainingArguments", "Accelerator", "Fabric"):
        for given in call.keywords:
            is_cpu = given.arg == "accelerator" and is_constant(given.value, "cpu")
            is_off = given.arg in ("use_cpu", "no_cuda", "cpu")
            if is_cpu or (is_off and is_constant(given.value, True)):
                yield source.location(given.value)


def chooses_gpu(sources: Sources) -> bool:
    """Return whether the script keeps the choice of a GPU, or lets its user choose."""
    return any(True for source in sources for _ in _choices(source)) or any(
        _is_option(call) for _, call in sources.calls("add_argument", "option")
    )


def mentions_gpu(sources: Sources) -> bool:
    """Return whether the script asks for a GPU, or moves something to one, anywhere."""
    return any(
        (_moves_to_gpu(source, call) or _asks(call)) and not _is_beside_seeds(source, call)
        for source, call in sources.nodes(ast.Call)
    )


def compares_devices(sources: Sources) -> bool:
    """Return whether a script does the same on the CPU and on a GPU, one after the other.

    As a loop over both, or a function that is called with each.
    """
    for source, loop in sources.nodes(ast.For):
        given: list[ast.expr] = [loop.iter]
        if isinstance(loop.iter, ast.Name):
            name = loop.iter.id
            given += [own.value for own in source.bindings if own.name == name]
            given += source.calls(f"{name}.append")
        if _names_both(_texts_in(*given)):
            return True
    for source in sources:
        functions = {node.name for node in source.nodes(ast.FunctionDef)}
        called: dict[str, list[str]] = {}
        for call in source.nodes(ast.Call):
            texts = _texts_in(*arguments_of(call))
            # Both in one call are options to choose from.
            if dotted_name(call.func) in functions and not _names_both(texts):
                called.setdefault(dotted_name(call.func), []).extend(texts)
        if any(map(_names_both, called.values())):
            return True
    return False


def _names_both(texts: Iterable[str]) -> bool:
    return {"cpu", "cuda"} <= {text.partition(":")[0] for text in texts}


def _texts_in(*nodes: ast.AST) -> list[str]:
    """Return the texts in expressions; a choice between two is none."""
    found: list[str] = []
    for node in nodes:
        if (text := text_of(node)) is not None:
            found.append(text)
        elif not isinstance(node, ast.IfExp):
            found += _texts_in(*ast.iter_child_nodes(node))
    return found


def _choices(source: SourceFile) -> Iterator[tuple[ast.AST, str]]:
    """Yield where a GPU is chosen, and the last part of the name that keeps the choice."""
    for statement, target, value in source.bindings:
        name = last_name(target)
        is_kept = bool(name) and isinstance(target, (ast.Name, ast.Attribute))
        if is_kept and any(map(_is_gpu, ast.walk(value))):
            yield statement, name
    for call in source.calls("add_argument"):
        default = keyword(call, "default")
        if default is not None and _is_gpu(default) and _is_option(call):
            option = call.args[-1]
            assert isinstance(option, ast.Constant)
            yield call, str(option.value).lstrip("-").replace("-", "_")


def _is_used(source: SourceFile, name: str) -> bool:
    """Return whether a name is read other than to show it."""
    return any(
        name == (node.id if isinstance(node, ast.Name) else node.attr)
        and isinstance(node.ctx, ast.Load)
        and dotted_name(node) != "torch.device"
        and not any(
            isinstance(above, ast.Call) and last_name(above.func) in _SHOWING
            for above in source.parents(node)
        )
        for node in source.nodes(ast.Name, ast.Attribute)
    )


def _moves_to_gpu(source: SourceFile, call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr == "cuda":
        return dotted_name(call.func) != "torch.cuda"
    if call.func.attr != "to" or not call.args:
        return False
    target = call.args[0]
    chosen = {name for _, name in _choices(source)}
    return any(map(_is_gpu, ast.walk(target))) or last_name(target) in chosen


def _is_gpu(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return _asks(node)
    return _GPU.fullmatch(text_of(node) or "") is not None


def _asks(call: ast.Call) -> bool:
    name = dotted_name(call.func)
    return name.startswith(("torch.cuda.", "torch.accelerator.")) and name.endswith(_QUERIES)


def _is_option(call: ast.Call) -> bool:
    return any(_OPTION.fullmatch(text_of(given) or "") for given in call.args)


def _is_beside_seeds(source: SourceFile, call: ast.Call) -> bool:
    """Return whether a question only guards other calls of ``torch.cuda``, such as its seeds."""
    above = source.parent(call)
    if not isinstance(above, ast.If) or above.test is not call:
        return False
    return all(
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and dotted_name(statement.value.func).startswith("torch.cuda.")
        for statement in above.body
    )


@rule("DEV001", "PART_ON_CPU")
def raising_lines(case: RuleInput) -> Matches:
    found: dict[object, Match] = {}
    for fault in case.trace.faults:
        if case.sources.is_at(fault.location, is_expected_to_fail):
            continue
        made = made_at(case.sources, fault.module) if fault.module else None
        one = _raising(fault) if made is None else _left_behind(fault, made)
        found.setdefault(one.location, one)
    return tuple(found.values())


def _raising(fault: DeviceFault) -> Match:
    return Match(
        title=f"on a GPU this line raises: {fault.message}",
        fix="move every tensor that it uses to the device, or back with .cpu()",
        evidence="the recorded step reached the line with its tensors placed as on a GPU",
        location=fault.location,
        share_fraction=0.0,
        is_error=True,
    )


def _left_behind(fault: DeviceFault, made: Location) -> Match:
    """Return the match of a module that stays on the host, at the line that makes it."""
    raising = fault.location
    where = "a line" if raising is None else f"line {raising.line} of {PurePath(raising.file).name}"
    return Match(
        title=f"{fault.module} is made here and stays on the CPU; on a GPU {where} raises",
        fix="move it to the device too, or make it an attribute of the model before that is moved",
        evidence=f"{fault.message}; all parameters of the module are on the CPU",
        location=made,
        share_fraction=0.0,
        is_error=True,
    )


_MOVE = "model.to(device) before the optimizer is made, batch.to(device) in the loop"


@rule("DEV002", "NOT_ON_GPU")
def unused_gpu(case: RuleInput) -> Matches:
    is_never = case.is_never_on_device
    dropped = list(discarded_moves(case.sources)) if is_never or case.trace.faults else []
    for location in dropped:
        yield Match(
            title="a tensor is moved to the GPU and the result dropped: the tensor stays where it "
            "is",
            fix="assign it: x = x.to(device)",
            evidence="the statement is a call of .to() or .cuda() alone",
            location=location,
            share_fraction=0.0,
        )
    if not is_never:
        return
    choice = next(iter(unused_choices(case.sources)), None)
    if choice is not None:
        calls = case.facts.model_calls
        yield Match(
            title="a GPU is chosen, and nothing is ever moved to it",
            fix=_MOVE,
            evidence="no operator of the step runs on the GPU, and nothing uses what line "
            f"{choice.line} chooses",
            location=(made_at(case.sources, calls[0].model) if calls else None) or choice,
            share_fraction=0.0,
        )
    elif not dropped and _is_at_fault(case):
        yield Match(
            title="the script never moves its model to a GPU",
            fix=_MOVE,
            evidence="no operator of the step runs on the GPU",
            location=next(forced_to_cpu(case.sources), None),
            share_fraction=0.0,
        )


def _is_at_fault(case: RuleInput) -> bool:
    """Return whether a script without a GPU meant to use one; unknown files may have."""
    if not case.sources.files:
        return True
    # A comparison that begins with the CPU is cut off before it comes to the GPU.
    is_meant = chooses_gpu(case.sources) or compares_devices(case.sources)
    return mentions_gpu(case.sources) and not is_meant


# A host part without gradients matters from this share of the step on.
_MIN_SHARE_FRACTION = 0.05
# Smaller tensors are counters and weights of losses, which may stay anywhere.
_MIN_ELEMENTS = 16


@rule("DEV003", "PART_ON_CPU")
def parts_on_host(case: RuleInput) -> Matches:
    if case.trace.uses_device:
        yield from _host_part(case)
    yield from _averages(case)


def _host_part(case: RuleInput) -> Matches:
    faults = {line_of(fault.location) for fault in case.trace.faults if fault.location}
    made = made_on_host(case.trace)
    on_host = {index: op for index, op in case.each(Op) if op.is_on_host}
    # The hooks of the script run in the backward pass as well, and compute for operators of the
    # device what no gradient flows through.
    with_forward = {line_of(op) for op in on_host.values() if op.phase is Phase.FORWARD}
    part = {
        index: op
        for index, op in on_host.items()
        if _is_part(op, made) and line_of(op) in with_forward - faults
    }
    part_ns = sum(op.host_ns for op in part.values())
    has_gradients = any(op.phase is Phase.BACKWARD for op in part.values())
    is_large = part_ns >= _MIN_SHARE_FRACTION * case.step_ns
    if not part or not (has_gradients or is_large):
        return
    lines = Counter[tuple[str, int] | None]()
    for op in part.values():
        lines[line_of(op)] += op.host_ns + 1
    dearest = lines.most_common(1)[0][0]
    copies = (i for i, kind in uploads(case).items() if kind is Upload.HOST_SUBMODEL)
    gone = (*waits_of(case, Wait.HOST_PART), *copies)
    yield Match(
        title=f"the host computes a part of the step for {format_duration(part_ns, 2)}, "
        "between operators of the GPU",
        fix="move the module or the loss to the GPU, with its inputs",
        evidence=f"{len(part)} operators on the host"
        + (", gradients flow through them" if has_gradients else ""),
        location=_line_of_part(case, [op for op in part.values() if line_of(op) == dearest]),
        events=tuple(sorted({*part, *gone})),
        edit=changed({index: on_device(op) for index, op in part.items()}, gone),
    )


def _line_of_part(case: RuleInput, ops: list[Op]) -> Location | None:
    """Return the line that makes the module of these operators, else that of the first of them."""
    module = next((op.module for op in ops if op.module), "")
    elsewhere = {f"{op.module}." for op in case.trace.ops if not op.is_on_host}
    parts = module.split(".") if module else []
    # The outermost that has nothing on the device.
    wholes = (".".join(parts[: depth + 1]) for depth in range(len(parts)))
    whole = next(
        (one for one in wholes if not any(path.startswith(f"{one}.") for path in elsewhere)), ""
    )
    parameters = parameters_of(case.trace)
    # A loss has none: it computes where its inputs are.
    has_parameters = whole and any(
        tensor.storage in parameters
        for op in case.trace.ops
        if f"{op.module}.".startswith(f"{whole}.")
        for tensor in op.inputs
    )
    made = made_at(case.sources, whole) if has_parameters else None
    return made or ops[0].location


def _is_part(op: Op, made: dict[int, TensorSource]) -> bool:
    if not op.is_on_host or not any(t.numel >= _MIN_ELEMENTS for t in (*op.inputs, *op.outputs)):
        return False
    if all(tensor.storage in made for tensor in op.inputs):
        return False
    return op.phase is Phase.BACKWARD or is_layer(op)


def _averages(case: RuleInput) -> Matches:
    """Yield lines that read weights to the host and change tensors there with them."""
    events = case.trace.events
    for location, reads in by_line(case.trace, waits_of(case, Wait.AVERAGE)):
        updates = [
            index
            for read in reads
            for index in range(read + 1, min(read + 1 + NEAR, len(events)))
            if is_average(events[index]) or _is_beside(events[index], events[read])
        ]
        gone = {*reads, *updates}
        averages = [events[index] for index in updates if is_average(events[index])]
        yield Match(
            title=f"{len(reads)} weights are copied to the host in every step and averaged there",
            fix="keep the average on the GPU: torch.optim.swa_utils.AveragedModel with "
            "get_ema_multi_avg_fn",
            evidence=f"{len(reads)} reads of parameters, each followed by an update on the host",
            location=location,
            events=tuple(sorted(gone)),
            edit=Edit(replaced={**dict.fromkeys(gone, ()), reads[0]: _averaged_at_once(averages)}),
        )


def _averaged_at_once(updates: list[Event]) -> tuple[Event, ...]:
    """Return the one operator of the device that updates all averages."""
    ops = [on_device(update) for update in updates]
    if not ops:
        return ()
    averages = tuple(max(op.inputs, key=lambda tensor: tensor.numel) for op in ops)
    name = "aten._foreach_lerp_.Scalar"
    return (replace(ops[0], name=name, inputs=averages + averages, outputs=()),)


def _is_beside(event: Event, read: Event) -> bool:
    """Return whether the host computes on the line that read, as in ``a * old + b * p.cpu()``."""
    return isinstance(event, Op) and event.is_on_host and line_of(event) == line_of(read)
