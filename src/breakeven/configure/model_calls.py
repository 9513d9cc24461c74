"""Patches that run an unmodified script's trained models compiled or in an autocast region."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._pytree import tree_map_only

from breakeven.configure.patching import ByIdentity, Patches, named_parameters_of, updated_by

# torch calls a module through this attribute if it is set; copies and saved models omit it.
_CALL = "_compiled_call_impl"
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
# After this many updates, every trained model has been called.
_MAX_UPDATES = 32


class changed_model_calls(Patches):  # noqa: N801 - a context manager reads as a verb
    """Inside, trained models run compiled, in an autocast region, or both.

    A model that the script compiles stays as it is. A call inside an autocast region of the script
    gets no second region.

    The patch sets the attribute that torch keeps for compiled calls. Parameter names, copies and
    saved models therefore do not change.

    Args:
        compile_mode: Mode of ``torch.compile``; empty for none.
        autocast: Name of the lower-precision format; empty for none.
        device: ``cpu`` or ``cuda``.
    """

    def __init__(self, *, compile_mode: str, autocast: str, device: str) -> None:
        super().__init__()
        self._compile_mode = compile_mode
        self._dtype = _DTYPES[autocast] if autocast else None
        self._device = device
        self._num_compiled = 0
        self._num_graphs_before = 0
        self._num_regions = 0
        # Numbers of the regions that were entered.
        self._entered: set[int] = set()

    def num_applied(self, setting: str) -> int:
        """Return the number of models whose calls a setting changes, by its name.

        For ``autocast``, it counts models that have run in our region. For compilation, it is 0 if
        torch found nothing to compile.
        """
        if setting == "autocast":
            return len(self._entered)
        return self._num_compiled if _num_graphs() > self._num_graphs_before else 0

    def _apply(self) -> None:
        self._num_graphs_before = _num_graphs()
        self.enter_context(TrainedModels(self._change))

    def _change(self, model: nn.Module) -> None:
        own = model._compiled_call_impl
        call = own or model._call_impl
        # torch.compile's result holds the model under this name.
        if self._compile_mode and own is None and "_orig_mod" not in model._modules:
            call = torch.compile(_traceable_call(model), mode=self._compile_mode)
            self._num_compiled += 1
        if self._dtype is not None and any(
            parameter.dtype is torch.float32 for _, parameter in named_parameters_of(model)
        ):
            call = self._in_region(call)
        if call not in (own, model._call_impl):
            # Do not assign: a compiled model forwards assignments to the model that it wraps.
            vars(model)[_CALL] = call
            self.callback(_restore, weakref.ref(model), call, own)

    def _in_region(self, call: Callable[..., Any]) -> Callable[..., Any]:
        device, dtype, entered = self._device, self._dtype, self._entered
        assert dtype is not None
        number = self._num_regions
        self._num_regions += 1

        def run(*args: Any, **kwargs: Any) -> Any:
            if torch.is_autocast_enabled(device):
                return call(*args, **kwargs)
            entered.add(number)
            with torch.autocast(device, dtype):
                output = call(*args, **kwargs)
            # Code after the model, such as the loss, computes in the script's format.
            return tree_map_only(
                torch.Tensor,
                lambda tensor: tensor.float() if tensor.dtype is dtype else tensor,
                output,
            )

        return run


def _traceable_call(model: nn.Module) -> Callable[..., Any]:
    """Return the call of a model in a form that torch.compile traces.

    torch.compile skips frames of torch's own code, including an ``nn.Sequential``, unless a frame
    of other code surrounds them. ``Module.compile`` silently does nothing for such a model.
    """
    import torch._dynamo.external_utils  # as slow as importing torch; only compiling needs it
    import torch._dynamo.trace_rules

    forward = model.forward
    if isinstance(forward, MethodType) and torch._dynamo.trace_rules.check(forward):
        return torch._dynamo.external_utils.wrap_inline(model._call_impl)
    return model._call_impl


def _num_graphs() -> int:
    """Return the number of graphs that torch.compile has made in this process."""
    counters = sys.modules.get("torch._dynamo.utils")
    return counters.counters["stats"]["unique_graphs"] if counters is not None else 0


def _restore(
    model: weakref.ref[nn.Module], ours: Callable[..., Any], own: Callable[..., Any] | None
) -> None:
    found = model()
    if found is None or vars(found).get(_CALL) is not ours:
        return
    if own is None:
        del vars(found)[_CALL]  # the class attribute is None
    else:
        vars(found)[_CALL] = own


class TrainedModels(Patches):
    """Calls back before the first call of each model whose parameters an optimizer updates.

    A nested module call belongs to the outer module. Once every parameter of every optimizer
    belongs to a model that was found, the patch stops watching calls.

    Args:
        on_found: Called with the model.
    """

    def __init__(self, on_found: Callable[[nn.Module], None]) -> None:
        super().__init__()
        self._on_found = on_found
        # Optimizers may replace or add parameters: keep the optimizers, not a set of parameters.
        self._optimizers = ByIdentity[torch.optim.Optimizer, bool]()
        self._found = ByIdentity[nn.Module, bool]()
        self._num_updates = 0
        self._is_over = False

    def _apply(self) -> None:
        original_call = nn.Module.__call__

        @functools.wraps(original_call)
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._is_over or torch.compiler.is_compiling():
                return original_call(module, *args, **kwargs)
            self._look_at(module)
            # Call the parts unpatched: at full speed, and in a form that torch.compile can trace.
            nn.Module.__call__ = original_call
            try:
                return original_call(module, *args, **kwargs)
            finally:
                if not self._is_over:
                    nn.Module.__call__ = call

        def stop() -> None:
            if not self._is_over:
                self._is_over = True
                nn.Module.__call__ = original_call

        def end_update(*_: Any) -> None:
            self._num_updates += 1
            if not self._is_over and (self._num_updates >= _MAX_UPDATES or self._is_complete()):
                stop()

        def note(optimizer: torch.optim.Optimizer) -> None:
            self._optimizers[optimizer] = True

        self.call_after_making(torch.optim.Optimizer, note)
        self.replace(nn.Module, "__call__", call)
        self.callback(stop)
        self.callback(register_optimizer_step_post_hook(end_update).remove)

    def _look_at(self, module: nn.Module) -> None:
        if module in self._found or isinstance(module, torch.jit.ScriptModule):
            return
        trained = {id(parameter) for parameter in self._parameters()}
        if any(id(parameter) in trained for _, parameter in named_parameters_of(module)):
            self._found[module] = True
            self._on_found(module)

    def _is_complete(self) -> bool:
        known = {
            id(parameter)
            for module in list(self._found)
            for _, parameter in named_parameters_of(module)
        }
        return all(id(parameter) in known for parameter in self._parameters())

    def _parameters(self) -> Iterator[torch.Tensor]:
        for optimizer in list(self._optimizers):
            yield from updated_by(optimizer)
