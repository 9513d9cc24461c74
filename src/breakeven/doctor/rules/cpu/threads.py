"""The threads that a run has."""

from __future__ import annotations

import ast
from typing import Final

from breakeven.doctor.rule import Case
from breakeven.doctor.source_lines import called_at
from breakeven.source import dotted_name
from breakeven.timing import CpuFacts
from breakeven.trace import Location, RunFacts

_THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def threads_and_cores(case: Case) -> tuple[int, int]:
    """Return the threads that torch computes with, and the processors that it may use."""
    known: CpuFacts | RunFacts = case.cpu or case.facts
    return known.num_threads, known.num_cores


def line_of_threads(case: Case) -> Location | None:
    """Return the line that sets the number of threads; None where torch's default rules."""
    assigned = (
        source.location(node)
        for source, node in case.sources.nodes(ast.Assign)
        if any(map(_is_thread_variable, node.targets))
    )
    return called_at(case, "set_num_threads") or next(assigned, None)


def _is_thread_variable(target: ast.expr) -> bool:
    """Return whether ``target`` is ``os.environ["OMP_NUM_THREADS"]``."""
    return (
        isinstance(target, ast.Subscript)
        and dotted_name(target).endswith("environ")
        and isinstance(target.slice, ast.Constant)
        and target.slice.value in _THREAD_VARIABLES
    )
