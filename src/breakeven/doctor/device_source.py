"""What the source says about a GPU that the script never uses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

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
