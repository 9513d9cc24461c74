"""What the source says about a GPU that the script never uses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from breakeven.source import (
    DEFINITIONS,
    LOOP_STATEMENTS,
    Source,
    Sources,
    dotted_name,
    is_constant,
    keyword,
    spans,
)
from breakeven.trace import Location

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
    for source in sources:
        modules = _made_by_classes(source)
        for node in source.nodes(ast.Expr):
            assert isinstance(node, ast.Expr)
            call = node.value
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            receiver = call.func.value
            is_name = isinstance(receiver, (ast.Name, ast.Attribute, ast.Subscript))
            name = dotted_name(receiver)
            is_module = name in modules or any(word in name.lower() for word in _MODULE_WORDS)
            if is_name and not is_module and _moves_to_gpu(source, call):
                yield source.location(node)


def unused_choices(sources: Sources) -> Iterator[Location]:
    """Yield lines that choose a GPU and keep the choice under a name that nothing uses."""
    for source in sources:
        for node, name in _choices(source):
            if not any(_is_used(other, name) for other in sources):
                yield source.location(node)


def is_expected_to_fail(source: Source, line: int) -> bool:
    """Return whether a ``try`` right around a line goes on with something else when it fails.

    One around a whole loop ends that loop, whatever it does then.
    """
    for node in source.nodes(ast.Try):
        assert isinstance(node, ast.Try)
        inside = next((part for part in node.body if spans(part, line)), None)
        if inside is None or isinstance(inside, (*LOOP_STATEMENTS, *DEFINITIONS)):
            continue
        if any(map(_goes_on_after_fault, node.handlers)):
            return True
    return False


def _goes_on_after_fault(handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {"" if kind is None else dotted_name(kind) for kind in caught}
    return bool(names & _FAULTS) and not any(isinstance(n, ast.Raise) for n in ast.walk(handler))


def made_at(sources: Sources, model: str) -> Location | None:
    """Return the line that makes the model and keeps it; None where no or several lines do."""
    lines = [
        source.location(node)
        for source in sources
        for node in source.nodes(ast.Assign)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and dotted_name(node.value.func).rpartition(".")[2] == model
    ]
    return lines[0] if len(lines) == 1 else None


def part_made_at(sources: Sources, module: str) -> Location | None:
    """Return the line that makes a part of a model: ``self.head = Head()``, or ``model = Net()``.

    Args:
        sources: The user's files.
        module: Dotted path: ``Net.encoder.head``, or ``Net`` for the whole.
    """
    parts = [part for part in module.split(".") if not part.isdigit()]
    if len(parts) < 2:
        return made_at(sources, module)
    lines = [
        source.location(node)
        for source in sources
        for node in source.nodes(ast.Assign)
        if isinstance(node, ast.Assign)
        and any(dotted_name(target).endswith(f".{parts[-1]}") for target in node.targets)
        and any(isinstance(inner, ast.Call) for inner in ast.walk(node.value))
        and not _holds_a_place(node.value)
    ]
    return lines[0] if len(lines) == 1 else None


def _holds_a_place(value: ast.expr) -> bool:
    """Return whether a module is made that another one takes the place of."""
    return isinstance(value, ast.Call) and dotted_name(value.func).endswith("Identity")


def forced_to_cpu(sources: Sources) -> Iterator[Location]:
    """Yield settings of a trainer that keep it off a GPU: ``accelerator="cpu"``."""
    for source in sources:
        for call in source.calls("Trainer", "TrainingArguments", "Accelerator", "Fabric"):
            for given in call.keywords:
                is_cpu = given.arg == "accelerator" and is_constant(given.value, "cpu")
                is_off = given.arg in ("use_cpu", "no_cuda", "cpu")
                if is_cpu or (is_off and is_constant(given.value, True)):
                    yield source.location(given.value)


def chooses_gpu(sources: Sources) -> bool:
    """Return whether the script keeps the choice of a GPU, or lets its user choose."""
    return any(True for source in sources for _ in _choices(source)) or any(
        _is_option(call) for source in sources for call in source.calls("add_argument", "option")
    )


def mentions_gpu(sources: Sources) -> bool:
    """Return whether the script asks for a GPU, or moves something to one, anywhere."""
    return any(
        _moves_to_gpu(source, call) or _asks(call)
        for source in sources
        for call in source.nodes(ast.Call)
        if isinstance(call, ast.Call) and not _is_beside_seeds(source, call)
    )


def _choices(source: Source) -> Iterator[tuple[ast.AST, str]]:
    """Yield where a GPU is chosen, and the last part of the name that keeps the choice."""
    for node in source.nodes(ast.Assign, ast.AnnAssign):
        assert isinstance(node, (ast.Assign, ast.AnnAssign))
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        is_choice = node.value is not None and any(map(_is_gpu, ast.walk(node.value)))
        for target in targets:
            name = dotted_name(target).rpartition(".")[2]
            if is_choice and name and isinstance(target, (ast.Name, ast.Attribute)):
                yield node, name
    for call in source.calls("add_argument"):
        default = keyword(call, "default")
        if default is not None and _is_gpu(default) and _is_option(call):
            option = call.args[-1]
            assert isinstance(option, ast.Constant)
            yield call, str(option.value).lstrip("-").replace("-", "_")


def _is_used(source: Source, name: str) -> bool:
    """Return whether a name is read other than to show it."""
    for node in source.nodes(ast.Name, ast.Attribute):
        assert isinstance(node, (ast.Name, ast.Attribute))
        own = node.id if isinstance(node, ast.Name) else node.attr
        is_read = own == name and isinstance(node.ctx, ast.Load)
        if is_read and dotted_name(node) != "torch.device" and not _is_shown(source, node):
            return True
    return False


def _is_shown(source: Source, node: ast.AST) -> bool:
    return any(
        isinstance(above, ast.Call) and dotted_name(above.func).rpartition(".")[2] in _SHOWING
        for above in source.parents(node)
    )


def _moves_to_gpu(source: Source, call: ast.AST) -> bool:
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr == "cuda":
        return dotted_name(call.func) != "torch.cuda"
    if call.func.attr != "to" or not call.args:
        return False
    target = call.args[0]
    chosen = {name for _, name in _choices(source)}
    return any(map(_is_gpu, ast.walk(target))) or dotted_name(target).rpartition(".")[2] in chosen


def _is_gpu(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and _GPU.fullmatch(node.value) is not None
    return isinstance(node, ast.Call) and _asks(node)


def _asks(call: ast.Call) -> bool:
    name = dotted_name(call.func)
    return name.startswith(("torch.cuda.", "torch.accelerator.")) and name.endswith(_QUERIES)


def _is_option(call: ast.Call) -> bool:
    return any(
        isinstance(given, ast.Constant)
        and isinstance(given.value, str)
        and _OPTION.fullmatch(given.value) is not None
        for given in call.args
    )


def _is_beside_seeds(source: Source, call: ast.Call) -> bool:
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


def _made_by_classes(source: Source) -> frozenset[str]:
    """Return names of what calling a class gave: ``model`` of ``model = Net()``."""
    found: set[str] = set()
    for node in source.nodes(ast.Assign):
        assert isinstance(node, ast.Assign)
        made = node.value
        if isinstance(made, ast.Call) and dotted_name(made.func).rpartition(".")[2][:1].isupper():
            found.update(dotted_name(target) for target in node.targets)
    return frozenset(found)
