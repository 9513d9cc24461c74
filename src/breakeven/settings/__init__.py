"""The registry of all settings; each module of this folder declares some in its ``SETTINGS``.

A module in this folder is registered automatically. ``Configuration`` holds one field per setting;
the order of its fields is the order in which settings are tried, applied and shown. Deciding
whether a setting may help needs only the facts of a step; ``apply`` imports torch when called.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from breakeven.lazy import exported_on_use
from breakeven.settings.setting import NO_SCRIPT as NO_SCRIPT
from breakeven.settings.setting import Candidate as Candidate
from breakeven.settings.setting import Setting as Setting
from breakeven.settings.setting import StepFacts as StepFacts
from breakeven.trace import Configuration
from breakeven.verdict import Numerics

if TYPE_CHECKING:
    from breakeven.settings.in_effect import configured as configured

_OTHERS = ("in_effect", "setting")


_MODULES = (
    import_module(f"{__name__}.{found.name}")
    for found in iter_modules(__path__)
    if found.name not in _OTHERS
)
_DECLARED: dict[str, Setting] = {
    setting.name: setting for module in _MODULES for setting in module.SETTINGS
}
SETTINGS: Mapping[str, Setting] = {
    name: _DECLARED[name] for name in Configuration.__struct_fields__
}


def all_candidates(facts: StepFacts, *, tries_batch_size: bool = False) -> tuple[Candidate, ...]:
    """Return the candidates for a step; each checks whether it applies.

    Args:
        facts: Facts of the step.
        tries_batch_size: Also try larger batches, which change the training.
    """
    return tuple(
        candidate
        for setting in SETTINGS.values()
        if tries_batch_size or setting.numerics is not Numerics.TRAINING
        for candidate in setting.candidates(facts)
    )


# Applying settings needs torch; files and reports work without it.
__getattr__ = exported_on_use(__name__)
