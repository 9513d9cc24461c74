"""DEV: parts that are not on the device, and scripts that never use a GPU."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath

from breakeven.advise.events import line_of, on_device, parameters_of, read_by
from breakeven.advise.rule import Match, Matches, RuleInput, changed, rule
from breakeven.advise.rules.sync import Wait, waits_of
from breakeven.advise.transfers import Upload, is_layer, made_on_host, uploads
from breakeven.source import (
    DEFINITIONS,
    LOOP_STATEMENTS,
    SourceFile,
    Sources,
    dotted_name,
    is_constant,
    last_name,
    nodes_in,
    spans,
    text_of,
)
from breakeven.trace import Location, Op, Phase
from breakeven.units import format_duration

_GPU = re.compile(r"(cuda|gpu)(:\d+)?")
_OPTION = re.compile(r"--?(no[-_])?(use[-_])?(cuda|gpus?|device|accelerator)([-_]ids?)?")
_QUERIES = ("is_available", "current_accelerator", "get_device_name", "device_count")
# Words in names of modules; modules move in place.
_MODULE_WORDS = (
    "model", "net", "module", "crit", "loss", "encoder", "decoder", "backbone", "head", "actor",
    "policy", "ema", "gen", "disc", "layer", "embed", "trainer", "metric", "self",
)  # fmt: skip
# Exceptions that catch the error of a tensor on the wrong device.
_FAULTS = frozenset({"BaseException", "Exception", "RuntimeError", "TypeError"})
_TRAINERS = ("Trainer", "TrainingArguments", "Accelerator", "Fabric")
_MOVE = "model.to(device) before the optimizer is made, batch.to(device) in the loop"
_SHOWING = ("print", "info", "debug", "warning", "write", "format")


def is_expected_to_fail(source: SourceFile, line: int) -> bool:
    """Return whether a ``try`` directly around a line handles its failure and continues.

    A ``try`` around a whole loop does not count: a failure ends that loop.
    """
    for node in source.nodes(ast.Try):
        inside = next((part for part in node.body if spans(part, line)), None)
        if inside is None or isinstance(inside, (*LOOP_STATEMENTS, *DEFINITIONS)):
            continue
        for handler in node.handlers:
            kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
            names = {dotted_name(kind) if kind else "Exception" for kind in kinds}
            if names & _FAULTS and not any(nodes_in(handler, ast.Raise)):
                return True
    return False


def made_at(sources: Sources, module: str) -> Location | None:
    """Return the line that makes a part of a model: ``self.head = Head()``, or ``model = Net()``.

    Args:
        sources: The user's files.
        module: Dotted path: ``Net.encoder.head``, or ``Net`` for the whole.

    Returns:
        The line; None if no line or several lines make it.
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
            # An Identity is only a placeholder for another module.
            and not dotted_name(value).endswith("Identity")
        )
    }
    return lines.pop() if len(lines) == 1 else None


def _may_forget_gpu(sources: Sources) -> bool:
    """Return whether a script without a GPU meant to use one; True if its files are unknown."""
    if not sources.files:
        return True
    has_choice = any(True for source in sources for _ in _choices(source))
    has_option = any(_is_option(call) for _, call in sources.calls("add_argument", "option"))
    # A comparison that starts with the CPU is cut off before it reaches the GPU.
    if has_choice or has_option or compares_devices(sources):
        return False
    for source, call in sources.nodes(ast.Call):
        above = source.parent(call)
        # A query may only guard other calls of ``torch.cuda``, such as its seeds.
        guards_seeds = (
            isinstance(above, ast.If)
            and above.test is call
            and all(
                isinstance(statement, ast.Expr)
                and dotted_name(statement.value).startswith("torch.cuda.")
                for statement in above.body
            )
        )
        if (_moves_to_gpu(source, call) or _is_gpu(call)) and not guards_seeds:
            return True
    return False


def compares_devices(sources: Sources) -> bool:
    """Return whether a script loops over the CPU and a GPU."""
    for source, loop in sources.nodes(ast.For):
        name = dotted_name(loop.iter) or "-"
        made = (own.value for own in source.bindings if own.name == name)
        texts = _texts_in(loop.iter, *made, *source.calls(f"{name}.append"))
        if {"cpu", "cuda"} <= {text.partition(":")[0] for text in texts}:
            return True
    return False


def _texts_in(*nodes: ast.AST) -> list[str]:
    """Return the texts in expressions, except in conditional expressions."""
    found: list[str] = []
    for node in nodes:
        if (text := text_of(node)) is not None:
            found.append(text)
        elif not isinstance(node, ast.IfExp):
            found += _texts_in(*ast.iter_child_nodes(node))
    return found


def _choices(source: SourceFile) -> Iterator[tuple[ast.AST, str]]:
    """Yield the nodes that choose a GPU, and the last part of the name that stores the choice."""
    for statement, target, value in source.bindings:
        name = last_name(target)
        is_kept = bool(name) and isinstance(target, (ast.Name, ast.Attribute))
        if is_kept and any(map(_is_gpu, ast.walk(value))):
            yield statement, name


def _is_used(source: SourceFile, name: str) -> bool:
    """Return whether a name is read for anything but display."""
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
    name = last_name(call.func) if isinstance(call.func, ast.Attribute) else ""
    if name != "to" or not call.args:
        return name == "cuda" and dotted_name(call.func) != "torch.cuda"
    target, chosen = call.args[0], {name for _, name in _choices(source)}
    return any(map(_is_gpu, ast.walk(target))) or last_name(target) in chosen


def _is_gpu(node: ast.AST) -> bool:
    """Return whether a node names a GPU, or queries one."""
    if not isinstance(node, ast.Call):
        return _GPU.fullmatch(text_of(node) or "") is not None
    name = dotted_name(node.func)
    return name.startswith(("torch.cuda.", "torch.accelerator.")) and name.endswith(_QUERIES)


def _is_option(call: ast.Call) -> bool:
    return any(_OPTION.fullmatch(text_of(given) or "") for given in call.args)


def _is_discarded_move(source: SourceFile, statement: ast.Expr) -> bool:
    """Return whether a statement moves a tensor and drops the result: ``x.to(device)``.

    Modules move in place, so names assigned from a class or named like a module are left out.
    """
    call = statement.value
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    receiver, name = call.func.value, dotted_name(call.func.value)
    is_name = isinstance(receiver, (ast.Name, ast.Attribute, ast.Subscript))
    values = (own.value for own in source.bindings if own.name == name)
    is_module = any(word in name.lower() for word in _MODULE_WORDS) or any(
        isinstance(value, ast.Call) and last_name(value)[:1].isupper() for value in values
    )
    return is_name and not is_module and _moves_to_gpu(source, call)


@rule("DEV001", "PART_ON_CPU")
def raising_lines(case: RuleInput) -> Matches:
    found: dict[object, Match] = {}
    for fault in case.trace.faults:
        at, module = fault.location, fault.module
        if case.sources.is_at(at, is_expected_to_fail):
            continue
        # Report a module that stays on the host at the line that makes it.
        made = made_at(case.sources, module) if module else None
        if made is not None:
            where = "a line" if at is None else f"{at.words} of {PurePath(at.file).name}"
            title = f"{module} is made here and stays on the CPU; on a GPU {where} raises"
            fix = "move it to the device too, or assign it to the model before model.to(device)"
            evidence = f"{fault.message}; all parameters of the module are on the CPU"
        else:
            title = f"on a GPU this line raises: {fault.message}"
            fix = "move every tensor that it uses to the device, or back with .cpu()"
            evidence = "the recorded step reached the line with its tensors placed as on a GPU"
        one = Match(
            title=title, fix=fix, evidence=evidence, location=made or at, share_fraction=0.0,
            is_error=True,
        )  # fmt: skip
        found.setdefault(one.location, one)
    return found.values()


@rule("DEV002", "NOT_ON_GPU")
def unused_gpu(case: RuleInput) -> Matches:
    is_never = case.is_never_on_device
    dropped = [
        source.location(statement)
        for source, statement in case.sources.nodes(ast.Expr)
        if (is_never or case.trace.faults) and _is_discarded_move(source, statement)
    ]
    for location in dropped:
        yield Match(
            title="a tensor is copied to the GPU and the copy dropped: the tensor stays on the CPU",
            fix="assign it: x = x.to(device)",
            evidence="the statement is a call of .to() or .cuda() alone",
            location=location,
            share_fraction=0.0,
        )
    if not is_never:
        return
    choices = (
        source.location(node)
        for source in case.sources
        for node, name in _choices(source)
        if not any(_is_used(other, name) for other in case.sources)
    )
    if (choice := next(choices, None)) is not None:
        calls = case.facts.model_calls
        made = made_at(case.sources, calls[0].model) if calls else None
        yield Match(
            title="a GPU is chosen, and nothing is ever moved to it",
            fix=_MOVE,
            evidence="no operator of the step runs on the GPU; nothing uses the device of "
            f"{choice.words}",
            location=made or choice,
            share_fraction=0.0,
        )
    elif not dropped and _may_forget_gpu(case.sources):
        # A trainer's setting may keep it off a GPU.
        forced = (
            source.location(given.value)
            for source, call in case.sources.calls(*_TRAINERS)
            for given in call.keywords
            if (given.arg == "accelerator" and is_constant(given.value, "cpu"))
            or (given.arg in ("use_cpu", "no_cuda", "cpu") and is_constant(given.value, True))
        )
        yield Match(
            title="the script never moves its model to a GPU",
            fix=_MOVE,
            evidence="no operator of the step runs on the GPU",
            location=next(forced, None),
            share_fraction=0.0,
        )


# A host part without gradients matters from this fraction of the step.
_MIN_SHARE_FRACTION = 0.05
# Smaller tensors are counters and loss weights, which may stay anywhere.
_MIN_ELEMENTS = 16


@rule("DEV003", "PART_ON_CPU")
def parts_on_host(case: RuleInput) -> Matches:
    if not case.trace.uses_device:
        return
    faults = {line_of(fault.location) for fault in case.trace.faults if fault.location}
    made = made_on_host(case.trace)
    on_host = {index: op for index, op in case.each(Op) if op.is_on_host}
    # The script's hooks also run in the backward pass; no gradient flows through their results.
    with_forward = {line_of(op) for op in on_host.values() if op.phase is Phase.FORWARD}
    part = {
        index: op
        for index, op in on_host.items()
        if any(tensor.numel >= _MIN_ELEMENTS for tensor in (*op.inputs, *op.outputs))
        and not all(tensor.storage in made for tensor in op.inputs)
        and (op.phase is Phase.BACKWARD or is_layer(op))
        and line_of(op) in with_forward - faults
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
    """Return the line that makes the module of these operators, or else the line of the first."""
    parts = next((op.module for op in ops if op.module), "").split(".")
    paths = [".".join(parts[: depth + 1]) for depth in range(len(parts))]
    parameters = parameters_of(case.trace)
    for path in filter(None, paths):
        below = [op for op in case.trace.ops if f"{op.module}.".startswith(f"{path}.")]
        # The outermost module without anything on the device.
        if all(op.is_on_host for op in below):
            # A loss has no parameters: it runs on the device of its inputs.
            made = made_at(case.sources, path) if read_by(below) & parameters else None
            return made or ops[0].location
    return ops[0].location
