"""What a person calls the parameters that an optimizer updates."""

from __future__ import annotations

import gc

import torch
from torch import nn

from breakeven.configure import children_of, named_parameters_of

# What torch.compile puts in front of the names of what it wraps.
_COMPILED = "_orig_mod."


class ParameterNames:
    """Finds the names of parameters in the models that hold them.

    Models are looked for among all objects of the process, once for each parameter that is not
    known yet: a hook in their calls would be compiled into them, or keep them from it.
    """

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    def name_of(self, parameter: torch.Tensor) -> str | None:
        """Return the name in the outermost model; None for a parameter of no model."""
        if id(parameter) not in self._names:
            self._names.update(
                (id(each), name.replace(_COMPILED, ""))
                for model in _outermost_models()
                for name, each in named_parameters_of(model)
            )
            # Asked for once: what has no name now is not looked for at every update.
            self._names.setdefault(id(parameter), "")
        return self._names[id(parameter)] or None


def _outermost_models() -> list[nn.Module]:
    """Return the models that are part of no other, the largest last."""
    # By the type, since an object may pretend another class.
    models = [each for each in gc.get_objects() if issubclass(type(each), nn.Module)]
    complete = [model for model in models if "_modules" in vars(model)]
    parts = {id(part) for model in complete for part in children_of(model)}
    return sorted((model for model in complete if id(model) not in parts), key=_num_parameters)


def _num_parameters(model: nn.Module) -> int:
    return len({id(each) for _, each in named_parameters_of(model)})
