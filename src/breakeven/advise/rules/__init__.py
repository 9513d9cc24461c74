"""The rules, one file for each family, and their pages; rules here are found automatically."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from breakeven.advise.rule import Rule

# If gains are equal, findings come in this order; families not listed come last.
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
