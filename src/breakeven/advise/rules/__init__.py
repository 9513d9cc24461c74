"""The rules, a file for each family, and their pages; they are registered by being there."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from breakeven.advise.rule import Rule

# Where fixes gain the same, findings come in this order; a family that is not named comes last.
_FAMILIES = (
    "DEV", "LAUNCH", "BATCH", "MEM", "LOOP", "SYNC", "COPY", "OPT", "LOAD", "HOST", "RUN", "TIME",
    "PREC", "KERN", "CPU",
)  # fmt: skip


@cache
def all_rules() -> tuple[Rule, ...]:
    """Return every rule, by family and code."""
    modules = [import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)]
    found = {one for module in modules for one in vars(module).values() if isinstance(one, Rule)}
    return tuple(sorted(found, key=_place))


def _place(rule: Rule) -> tuple[int, str]:
    family = rule.code.rstrip("0123456789")
    return _FAMILIES.index(family) if family in _FAMILIES else len(_FAMILIES), rule.code
