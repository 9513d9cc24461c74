"""Which names of a file read a clock, wait for the device, or live on it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from breakeven.source import Source, Sources, dotted_name, is_constant, keyword

_CLOCKS = frozenset({
    "time.time", "time.time_ns", "time.perf_counter", "time.perf_counter_ns", "time.monotonic",
    "time.monotonic_ns", "time.process_time", "timeit.default_timer", "datetime.datetime.now",
    "datetime.datetime.utcnow",
})  # fmt: skip

# Read the clock around what they are given.
_OWN_CLOCKS = frozenset({"timeit.timeit", "timeit.repeat"})

# The device is done when these return.
_WAITS = frozenset({
    "item", "cpu", "tolist", "numpy", "synchronize", "elapsed_time", "mark_step", "barrier",
    "wait_for_everyone", "block_until_ready",
})  # fmt: skip
_COMPUTES = re.compile(r"^(torch|F|(torch\.)?nn\.functional|torch\.(linalg|fft))\.[a-z_0-9]+$")
_COMPUTE_NOTHING = frozenset({
    "save", "compile", "is_tensor", "numel", "as_tensor", "from_numpy", "typename", "broadcast_to",
})  # fmt: skip
_SHOWS = frozenset({"print", "float", "int", "bool", "str", "repr", "format"})
_MOVES = frozenset({"to", "cuda"})


@dataclass(frozen=True, slots=True)
class TimingNames:
    """What the names of one file stand for, as far as timing goes.

    Args:
        clocks: Dotted names that read a clock when called: ``time.time``, ``now``.
        own_clocks: Those that read it around what they are given: ``timeit.timeit``.
        waiting: Names of functions of the file that wait for the device.
        losses: Tensors on which ``backward()`` is called.
        on_device: Models and tensors that are made on, or moved to, a device.
    """

    clocks: frozenset[str]
    own_clocks: frozenset[str]
    waiting: frozenset[str]
    losses: frozenset[str]
    on_device: frozenset[str]

    @staticmethod
    def of(source: Source) -> TimingNames:
        """Return the names of a file."""
        return TimingNames(
            clocks=_names_of(source, _CLOCKS),
            own_clocks=_names_of(source, _OWN_CLOCKS),
            waiting=_waiting_names(source),
            losses=_loss_names(source),
            on_device=_device_names(source),
        )

    def is_clock(self, node: ast.AST) -> bool:
        """Return whether a node is a call that reads a clock."""
        return isinstance(node, ast.Call) and dotted_name(node.func) in self.clocks

    @property
    def has_clocks(self) -> bool:
        """Return whether anything in the file reads a clock."""
        return bool(self.clocks or self.own_clocks)

    def own_clock_runs(self, call: ast.Call) -> ast.expr | None:
        """Return what a call runs between two readings of its own, as ``timeit.timeit`` does."""
        given = call.args[0] if call.args else keyword(call, "stmt")
        if dotted_name(call.func) in self.own_clocks:
            return given
        return None

    def is_wait(self, node: ast.AST) -> bool:
        """Return whether a node is a call that returns once the device is done."""
        if not isinstance(node, ast.Call):
            return False
        name = dotted_name(node.func)
        last = name.rpartition(".")[2]
        if last in _WAITS or name.removeprefix("self.") in self.waiting:
            return True
        if last == "fit" or ("trainer" in name.lower() and last == "train"):
            return True  # their loops read the loss on the way
        shown = {dotted_name(part) for given in node.args for part in ast.walk(given)}
        return name in _SHOWS and bool(shown & self.losses)

    def is_work(self, node: ast.AST) -> bool:
        """Return whether a node plainly issues work of the device, trace or not."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            return self._is_on_device(node.left) or self._is_on_device(node.right)
        if not isinstance(node, ast.Call):
            return False
        name = dotted_name(node.func)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "backward":
            return True
        if isinstance(node.func, ast.Name):
            return name in self.on_device
        computes = _COMPUTES.match(name) and name.rpartition(".")[2] not in _COMPUTE_NOTHING
        return bool(computes) and any(self._is_on_device(given) for given in node.args)

    def _is_on_device(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id in self.on_device


def compares_devices(sources: Sources) -> bool:
    """Return whether a script does the same on the CPU and on a GPU, one after the other.

    As a loop over both, or a function that is called with each.
    """
    for source in sources:
        for loop in source.nodes(ast.For):
            assert isinstance(loop, ast.For)
            given = [loop.iter]
            if isinstance(loop.iter, ast.Name):
                given += [node.value for node in _assigned(source, loop.iter.id)]
                given += source.calls(f"{loop.iter.id}.append")
            if _names_both(text for node in given for text in _texts_in(node)):
                return True
        called: dict[str, list[str]] = {}
        for call in source.nodes(ast.Call):
            assert isinstance(call, ast.Call)
            own = [*call.args, *(one.value for one in call.keywords)]
            texts = [text for node in own for text in _texts_in(node)]
            # Both in one call are options to choose from.
            if not _names_both(texts):
                called.setdefault(dotted_name(call.func), []).extend(texts)
        functions = {node.name for node in source.nodes(ast.FunctionDef)}  # pyright: ignore
        if any(name in functions and _names_both(texts) for name, texts in called.items()):
            return True
    return False


def _names_both(texts: Iterable[str]) -> bool:
    known = {text.partition(":")[0] for text in texts}
    return {"cpu", "cuda"} <= known


def _texts_in(node: ast.AST) -> list[str]:
    """Return the texts in an expression; a choice between two is none."""
    if isinstance(node, ast.IfExp):
        return []
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    return [text for child in ast.iter_child_nodes(node) for text in _texts_in(child)]


def _assigned(source: Source, name: str) -> Iterator[ast.Assign]:
    for node in source.nodes(ast.Assign):
        if isinstance(node, ast.Assign) and any(dotted_name(t) == name for t in node.targets):
            yield node


def _names_of(source: Source, known: frozenset[str]) -> frozenset[str]:
    clocks = {name for name, stands_for in source.imports.items() if stands_for in known}
    for name, stands_for in source.imports.items():
        prefix = stands_for + "."
        clocks.update(
            name + clock.removeprefix(stands_for) for clock in known if clock.startswith(prefix)
        )
    # `now = time.perf_counter`.
    for node in source.nodes(ast.Assign):
        assert isinstance(node, ast.Assign)
        if isinstance(node.value, (ast.Name, ast.Attribute)) and dotted_name(node.value) in clocks:
            clocks.update(dotted_name(target) for target in node.targets)
    return frozenset(clocks)


def _waiting_names(source: Source) -> frozenset[str]:
    waiting: set[str] = set()
    # `sync = torch.cuda.synchronize if cuda else (lambda: None)`.
    for node in source.nodes(ast.Assign):
        assert isinstance(node, ast.Assign)
        parts = {part.attr for part in ast.walk(node.value) if isinstance(part, ast.Attribute)}
        if "synchronize" in parts:
            waiting.update(dotted_name(target) for target in node.targets)
    functions = [
        node for node in source.nodes(ast.FunctionDef) if isinstance(node, ast.FunctionDef)
    ]
    for _ in range(3):  # functions that call functions that wait
        for function in functions:
            called = {
                dotted_name(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)
            }
            if any(
                name.rpartition(".")[2] in _WAITS or name.removeprefix("self.") in waiting
                for name in called
            ):
                waiting.add(function.name)
    return frozenset(waiting)


def _loss_names(source: Source) -> frozenset[str]:
    return frozenset(
        dotted_name(node.func).removesuffix(".backward")
        for node in source.nodes(ast.Call)
        if isinstance(node, ast.Call) and dotted_name(node.func).endswith(".backward")
    )


def _device_names(source: Source) -> frozenset[str]:
    names: set[str] = set()
    for node in source.nodes(ast.Assign):
        assert isinstance(node, ast.Assign)
        if not _is_made_on_device(node.value):
            continue
        for target in node.targets:
            parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
            names.update(part.id for part in parts if isinstance(part, ast.Name))
    return frozenset(names)


def _is_made_on_device(value: ast.expr) -> bool:
    if isinstance(value, (ast.Tuple, ast.List)):
        return any(_is_made_on_device(part) for part in value.elts)
    if not isinstance(value, ast.Call):
        return False
    device = keyword(value, "device")
    if device is not None:
        return not is_constant(device, "cpu")
    if isinstance(value.func, ast.Attribute):
        if value.func.attr in _MOVES:
            return not any(is_constant(given, "cpu") for given in value.args)
        # `Net().to(device).train()`.
        return _is_made_on_device(value.func.value)
    return False
