"""One module for each rule, named by its code: it is registered by being there."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from breakeven.doctor.rule import Rule

# Where fixes gain the same, findings come in this order; a family that is not named comes last.
_FAMILIES = (
    "dev", "launch", "batch", "mem", "loop", "sync", "copy", "opt", "load", "host", "run", "time",
    "prec", "kern", "cpu",
)  # fmt: skip


@cache
def all_rules() -> tuple[Rule, ...]:
    """Return every rule, by family and code."""
    return tuple(map(_rule, sorted((found.name for found in iter_modules(__path__)), key=_place)))


def _place(name: str) -> tuple[int, str]:
    family = name.rstrip("0123456789")
    return _FAMILIES.index(family) if family in _FAMILIES else len(_FAMILIES), name


def _rule(name: str) -> Rule:
    module = import_module(f"{__name__}.{name}")
    return Rule(
        code=name.upper(), cause=module.CAUSE, page=module.__doc__ or "", find=module.detect
    )
