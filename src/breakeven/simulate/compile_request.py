"""What a script, or a row of a table, asks of ``torch.compile``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum

from breakeven.trace import Call, StepTrace


class CompileMode(StrEnum):
    """Modes of ``torch.compile``."""

    DEFAULT = "default"
    REDUCE_OVERHEAD = "reduce-overhead"
    MAX_AUTOTUNE = "max-autotune"

    @property
    def has_graphs(self) -> bool:
        """Return whether compiled code is replayed from CUDA graphs."""
        return self is not CompileMode.DEFAULT


def compile_mode_of(trace: StepTrace) -> CompileMode | None:
    """Return the mode in which a script compiles its model; None where it does not."""
    calls = [call for call in _compilations(trace) if not _is_of_optimizer(call, trace)]
    if calls:
        return _mode_of(calls)
    # A library may compile it unseen.
    is_compiled = trace.settings.is_compiled and optimizer_compile_mode_of(trace) is None
    return CompileMode.DEFAULT if is_compiled else None


def optimizer_compile_mode_of(trace: StepTrace) -> CompileMode | None:
    """Return the mode in which a script compiles its optimizer's step; None where it does not.

    Of several optimizers, all must be compiled: a step does not tell their updates apart.
    """
    calls = [call for call in _compilations(trace) if _is_of_optimizer(call, trace)]
    compiled = {_compiled_name(call) for call in calls}
    optimizers = trace.facts.optimizers
    if not calls or any(compiled.isdisjoint(_step_names(found.name)) for found in optimizers):
        return None
    return _mode_of(calls)


def _step_names(optimizer: str) -> set[str]:
    """Return what the step of an optimizer may be called.

    Where a scheduler watches it, it is named by the class that defines it.
    """
    return {f"{optimizer}.step", f"{_DEFINED_BY.get(optimizer, optimizer)}.step"}


_DEFINED_BY = {"AdamW": "Adam"}


def _compilations(trace: StepTrace) -> list[Call]:
    names = ("torch.compile", "Module.compile")
    return [call for call in trace.facts.calls if call.name in names]


def _compiled_name(call: Call) -> str:
    return call.argument.partition(",")[0]


def _is_of_optimizer(call: Call, trace: StepTrace) -> bool:
    name = _compiled_name(call)
    return any(name in _step_names(found.name) for found in trace.facts.optimizers)


def _mode_of(calls: Iterable[Call]) -> CompileMode:
    """Return the mode of the first call; those without CUDA graphs are told by their base."""
    argument = next(iter(calls)).argument
    asked = next((mode for mode in CompileMode if f"mode={mode}" in argument), CompileMode.DEFAULT)
    return CompileMode.DEFAULT if "no-cudagraphs" in argument else asked


# Source: pytorch PR 99773, which Inductor has since June 2023; torch 2.1 is the first release.
_CHANGES_LAYOUT_SINCE = ((2, 1), (2023, 6))


def may_change_layout(framework: str) -> bool:
    """Return whether Inductor brings convolutions into channels-last order where that pays.

    Args:
        framework: As tables write it: ``torch 2.1 nightly 2023-03``. Others than early versions
            of torch 2 are taken to be later ones.
    """
    found = re.match(r"torch (\d+)\.(\d+)[\w.]*(?: nightly (\d+)-(\d+))?", framework)
    if found is None:
        return True
    major, minor, year, month = (int(part) if part else None for part in found.groups())
    version, date = _CHANGES_LAYOUT_SINCE
    if (major, minor) == version and year is not None:
        return (year, month) >= date
    return (major, minor) >= version
