"""Which names of a file read a clock, wait for the device, or live on it."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from breakeven.doctor._source import Source, dotted_name, is_constant, keyword

_CLOCKS = frozenset({
    "time.time", "time.time_ns", "time.perf_counter", "time.perf_counter_ns", "time.monotonic",
    "time.monotonic_ns", "time.process_time", "timeit.default_timer", "datetime.datetime.now",
    "datetime.datetime.utcnow",
})  # fmt: skip

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
        waiting: Names of functions of the file that wait for the device.
        losses: Tensors on which ``backward()`` is called.
        on_device: Models and tensors that are made on, or moved to, a device.
    """

    clocks: frozenset[str]
    waiting: frozenset[str]
    losses: frozenset[str]
    on_device: frozenset[str]

    @staticmethod
    def of(source: Source) -> TimingNames:
        """Return the names of a file."""
        return TimingNames(
            _clock_names(source), _waiting_names(source), _loss_names(source), _device_names(source)
        )

    def is_clock(self, node: ast.AST) -> bool:
        """Return whether a node is a call that reads a clock."""
        return isinstance(node, ast.Call) and dotted_name(node.func) in self.clocks

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


def _clock_names(source: Source) -> frozenset[str]:
    clocks = {name for name, stands_for in source.imports.items() if stands_for in _CLOCKS}
    for name, stands_for in source.imports.items():
        prefix = stands_for + "."
        clocks.update(
            name + clock.removeprefix(stands_for) for clock in _CLOCKS if clock.startswith(prefix)
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
