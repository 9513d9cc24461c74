"""The threads that a run has."""

from __future__ import annotations

import ast
from typing import Final

from breakeven.doctor.rule import Case
from breakeven.doctor.source_lines import called_at
from breakeven.source import dotted_name
from breakeven.trace import Location

_THREAD_VARIABLES: Final = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def threads_of_run(case: Case) -> int:
    """Return the threads that torch computes with."""
    return case.cpu.num_threads if case.cpu is not None else case.facts.num_threads


def cores_of_run(case: Case) -> int:
    """Return the processors that the process may use."""
    return case.cpu.num_cores if case.cpu is not None else case.facts.num_cores


def line_of_threads(case: Case) -> Location | None:
    """Return the line that sets the number of threads; None where torch's default rules."""
    called = called_at(case, "set_num_threads")
    if called is not None:
        return called
    for source in case.sources:
        for node in source.nodes(ast.Assign):
            assert isinstance(node, ast.Assign)
            if any(map(_is_thread_variable, node.targets)):
                return source.location(node)
    return None


def _is_thread_variable(target: ast.expr) -> bool:
    """Return whether ``target`` is ``os.environ["OMP_NUM_THREADS"]``."""
    return (
        isinstance(target, ast.Subscript)
        and dotted_name(target).endswith("environ")
        and isinstance(target.slice, ast.Constant)
        and target.slice.value in _THREAD_VARIABLES
    )
