"""One module for each rule, in the folder of its family: it is registered by being there."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from pkgutil import walk_packages

from breakeven.doctor.rule import Rule

# Where fixes gain the same, findings are told in this order; a family that is not named comes last.
_FAMILIES = (
    "dev", "launch", "batch", "mem", "loop", "sync", "copy", "opt", "load", "host", "run", "time",
    "prec", "kern", "cpu",
)  # fmt: skip
# What is not a rule in such a folder is what rules of the family share.
_RULE = re.compile(r".*\.(\w+)\.(\1\d+)")


@cache
def all_rules() -> tuple[Rule, ...]:
    """Return every rule, by family and code."""
    names = (_RULE.fullmatch(found.name) for found in walk_packages(__path__, f"{__name__}."))
    by_family = sorted((name for name in names if name is not None), key=_place)
    return tuple(_rule(name[0], name[2].upper()) for name in by_family)


def _place(name: re.Match[str]) -> tuple[int, str]:
    family, code = name[1], name[2]
    return _FAMILIES.index(family) if family in _FAMILIES else len(_FAMILIES), code


def _rule(module_name: str, code: str) -> Rule:
    module = import_module(module_name)
    return Rule(code=code, cause=module.CAUSE, page=module.__doc__ or "", find=module.detect)
