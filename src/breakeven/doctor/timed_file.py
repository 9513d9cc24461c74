"""What the names and lines of a file have to do with clocks and with work of a device."""

from __future__ import annotations

import ast
import re

from breakeven.source import SourceFile, dotted_name, is_constant, keyword, last_name, nodes_in

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


class TimedFile:
    """One file of the script, and what it says of clocks and work.

    Args:
        source: The file.
        issuing: Lines that issue work of the device, as the trace shows.
        waiting: Lines that wait for it.
    """

    def __init__(self, source: SourceFile, issuing: set[int], waiting: set[int]) -> None:
        self.source = source
        self.issuing = issuing
        self.waiting = waiting
        self._clocks = source.names_for(_CLOCKS)
        self._own_clocks = source.names_for(_OWN_CLOCKS)
        self._waiting_names = _waiting_names(source)
        # Tensors on which `backward()` is called.
        self._losses = {
            dotted_name(call.func).removesuffix(".backward") for call in source.calls("backward")
        }
        # Models and tensors that are made on, or moved to, a device.
        self._on_device = {
            part.id
            for binding in source.bindings
            if _is_made_on_device(binding.value)
            for part in getattr(binding.target, "elts", [binding.target])
            if isinstance(part, ast.Name)
        }

    @property
    def has_clocks(self) -> bool:
        """Return whether anything in the file reads a clock."""
        return bool(self._clocks or self._own_clocks)

    def is_clock(self, node: ast.AST) -> bool:
        """Return whether a node is a call that reads a clock."""
        return isinstance(node, ast.Call) and dotted_name(node.func) in self._clocks

    def own_clock_runs(self, call: ast.Call) -> ast.expr | None:
        """Return what a call runs between two readings of its own, as ``timeit.timeit`` does."""
        if dotted_name(call.func) not in self._own_clocks:
            return None
        return call.args[0] if call.args else keyword(call, "stmt")

    def is_wait(self, node: ast.AST) -> bool:
        """Return whether a node is a call that returns once the device is done."""
        if not isinstance(node, ast.Call):
            return False
        name = dotted_name(node.func)
        if self.is_waiting_name(name):
            return True
        last = last_name(node.func)
        if last == "fit" or ("trainer" in name.lower() and last == "train"):
            return True  # their loops read the loss on the way
        shown = {dotted_name(part) for given in node.args for part in ast.walk(given)}
        return name in _SHOWS and bool(shown & self._losses)

    def is_waiting_name(self, name: str) -> bool:
        """Return whether what has a dotted name waits for the device when it is called."""
        return _is_late(name, self._waiting_names)

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
            return name in self._on_device
        computes = _COMPUTES.match(name) and last_name(node.func) not in _COMPUTE_NOTHING
        return bool(computes) and any(map(self._is_on_device, node.args))

    def _is_on_device(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and node.id in self._on_device


def _waiting_names(source: SourceFile) -> set[str]:
    """Return what waits for the device: functions of the file, and names for ``synchronize``."""
    # `sync = torch.cuda.synchronize if cuda else (lambda: None)`.
    waiting = {
        binding.name
        for binding in source.bindings
        if any(part.attr == "synchronize" for part in nodes_in(binding.value, ast.Attribute))
    }
    called = [
        (function.name, {dotted_name(call.func) for call in nodes_in(function, ast.Call)})
        for function in source.nodes(ast.FunctionDef)
    ]
    for _ in range(3):  # functions that call functions that wait
        for function, names in called:
            if any(_is_late(name, waiting) for name in names):
                waiting.add(function)
    return waiting


def _is_late(name: str, waiting: set[str]) -> bool:
    return name.rpartition(".")[2] in _WAITS or name.removeprefix("self.") in waiting


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
