"""The loops around the first step: what they do besides their steps comes again with each pass."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch

from breakeven.source import LOOP_STATEMENTS, nodes_in

# Calls that only wrap what they are given first, or hand over its elements.
_WRAPPERS = frozenset({"enumerate", "list", "reversed", "tqdm", "tuple"})
# What may be computed a second time: it changes nothing, and takes no time.
_HARMLESS_CALLS = frozenset({"chunk", "len", "range", "split"})
_HARMLESS = (ast.Name, ast.Attribute, ast.Constant, ast.BinOp, ast.operator, ast.expr_context)


class StepLoop(NamedTuple):
    """A loop around the first step.

    Args:
        depth: Of its function among those that are running, the outermost 0.
        lines: Its lines; of all but the innermost without the first, which fetches what comes next.
        num_passes: How often it runs; None where that is not known.
    """

    depth: int
    lines: range
    num_passes: int | None


def loops_around(frames: Sequence[FrameType]) -> tuple[StepLoop, ...]:
    """Return each loop that runs, the outermost first.

    Args:
        frames: The functions that run, the outermost first.
    """
    found: list[tuple[int, FrameType, ast.For | ast.AsyncFor | ast.While]] = []
    for depth, frame in enumerate(frames):
        try:
            tree = ast.parse(Path(frame.f_code.co_filename).read_bytes())
        except (OSError, SyntaxError, ValueError):  # generated code has no file
            continue
        found += [
            (depth, frame, loop)
            for loop in nodes_in(tree, *LOOP_STATEMENTS)
            if frame.f_code.co_firstlineno <= loop.lineno <= frame.f_lineno
            and frame.f_lineno <= (loop.end_lineno or 0)
        ]
    return tuple(
        StepLoop(
            depth,
            range(
                (loop if number == len(found) else loop.body[0]).lineno, (loop.end_lineno or 0) + 1
            ),
            _num_passes(loop, frame),
        )
        for number, (depth, frame, loop) in enumerate(found, start=1)
    )


def _num_passes(loop: ast.For | ast.AsyncFor | ast.While, frame: FrameType) -> int | None:
    """Return the length of what a loop goes through, where to ask for it changes nothing."""
    if isinstance(loop, ast.While):
        return None
    held = loop.iter
    while isinstance(held, ast.Call) and _name_of(held) in _WRAPPERS and held.args:
        held = held.args[0]
    calls = {_name_of(call) for call in nodes_in(held, ast.Call)}
    if not _HARMLESS_CALLS.issuperset(calls) or not all(
        isinstance(node, (*_HARMLESS, ast.Call)) for node in ast.walk(held)
    ):
        return None
    code = compile(ast.Expression(held), "<loop>", "eval")
    try:
        with torch.no_grad():
            return len(eval(code, frame.f_globals, frame.f_locals))
    except Exception:  # an iterator has no length, and the script's own may raise anything
        return None


def _name_of(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]
