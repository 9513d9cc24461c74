"""Steps compiled by torch's Inductor: a function of tensors as one call without guards.

Only this file and ``codegen/tracing.py`` use undocumented parts of torch: ``make_fx`` and
Inductor's ``compile``, ``config.patch`` and decomposition table, as of torch 2.13.
``torch.compile`` also works, but its guards and the wrapper around its graph take longer than a
small step.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from faststep.batch import Batch, num_steps_of
from faststep.codegen.tracing import without_onednn
from faststep.errors import FastStepError
from faststep.params import Params, clone_all
from faststep.recipe import Recipe
from faststep.step_function import make_step

Mode = Literal["default", "reduce-overhead"]
# One thread finishes a loop over fewer elements before other threads wake.
_SMALL_LOOP = 2**16


class CompiledStep:
    """A compiled call that does a fixed number of steps.

    Args:
        recipe: The computation of a step.
        params: The tensors that the call is compiled for.
        batch: A batch, or a data set, of the shapes that the call is compiled for.
        indices: Indices of the samples of each step; None for a single step.
        mode: The compiler's mode.
    """

    engine = "Inductor"

    def __init__(
        self, recipe: Recipe, params: Params, batch: Batch, indices: Tensor | None, mode: Mode
    ) -> None:
        self.num_steps = num_steps_of(indices)
        start_ns = time.perf_counter_ns()
        function = make_step(recipe, params, batch, self.num_steps)
        examples = self._arguments(params, params.arguments, batch, indices)
        self._call = compile_tensors(function, examples, mode)
        self.compile_ns = time.perf_counter_ns() - start_ns

    def _arguments(
        self, params: Params, written: Sequence[Tensor], batch: Batch, indices: Tensor | None
    ) -> tuple[Tensor, ...]:
        samples = () if indices is None else (indices,)
        return (*written, params.numbers(self.num_steps), *batch.tensors, *samples)

    def __call__(self, params: Params, batch: Batch, indices: Tensor | None) -> tuple[Tensor, ...]:
        """Do the steps; return their losses and auxiliary tensors."""
        results = self._call(*self._arguments(params, params.arguments, batch, indices))
        params.count(self.num_steps)
        return tuple(results)

    def on_copies(
        self, params: Params, batch: Batch, indices: Tensor | None
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Do the steps on copies of the tensors.

        Returns:
            The losses and auxiliary tensors, and the copies in the order of
            ``params.arguments``.
        """
        copies = clone_all(params.arguments)
        return clone_all(self._call(*self._arguments(params, copies, batch, indices))), copies


def compile_tensors(
    function: Callable[..., tuple[Tensor, ...]], examples: Sequence[Tensor], mode: Mode
) -> Callable[..., tuple[Tensor, ...]]:
    """Compile a function for tensors of exactly these shapes, strides, types and devices.

    Compiling neither reads nor writes the examples. The compiled code draws the same random
    numbers as the uncompiled code.

    Args:
        function: Takes the tensors, may write to them, and returns a tuple of tensors.
        examples: Tensors like those of later calls.
        mode: ``reduce-overhead`` replays a CUDA graph.

    Raises:
        FastStepError: The function cannot be compiled; gives the reason.
    """
    try:
        from torch._inductor import compile as compile_graph
        from torch._inductor import config
    except ImportError as error:
        raise FastStepError(
            f"torch {torch.__version__} cannot compile a whole step: {error}",
            hint="fast_step is tested with torch 2.13; another version may have it.",
        ) from error

    settings: dict[str, Any] = {
        # Draw the same dropout masks as the stock step, so that the results compare.
        "fallback_random": True,
        # Start no pool of processes, which would outlive the compilation.
        "compile_threads": 1,
    }
    on_cuda = any(example.is_cuda for example in examples)
    if on_cuda:
        settings["triton.cudagraphs"] = mode == "reduce-overhead"
    else:
        settings["cpp_wrapper"] = True
    with unchanged_state(), explained(), config.patch(settings):
        graph = trace_tensors(function, examples)
        values = [node.meta.get("val") for node in graph.graph.nodes if node.op == "call_function"]
        largest = max((one.numel() for one in values if isinstance(one, Tensor)), default=0)
        if not on_cuda and largest < _SMALL_LOOP:
            settings["cpp.threads"] = 1
        with config.patch(settings), torch.no_grad():
            return compile_graph(graph, list(examples))  # pyright: ignore[reportReturnType]


def trace_tensors(
    function: Callable[..., tuple[Tensor, ...]], examples: Sequence[Tensor]
) -> torch.fx.GraphModule:
    """Return a graph of all operators of a function, including its own backward pass.

    Args:
        function: As for ``compile_tensors``.
        examples: As for ``compile_tensors``.
    """
    import torch._inductor.lowering  # a decomposition uses it, and does not import it
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    trace = make_fx(function, decomposition_table=select_decomp_table(), tracing_mode="fake")
    with without_onednn(), torch.enable_grad():
        return trace(*examples)


@contextlib.contextmanager
def unchanged_state() -> Iterator[None]:
    """Restore random state and number of threads at the end; suppress warnings inside."""
    num_threads = torch.get_num_threads()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            if torch.get_num_threads() != num_threads:
                torch.set_num_threads(num_threads)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turn any exception of the compiler into a ``FastStepError`` with a hint."""
    try:
        yield
    except FastStepError:
        raise
    except Exception as error:
        name = type(error).__name__
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        if "InvalidCxxCompiler" in name or "InvalidCxxCompiler" in str(error):
            raise FastStepError(
                "the whole step cannot be compiled: no working C++ compiler was found",
                hint="Install one (g++ or clang++), or name it in the environment variable CXX.",
            ) from error
        if "DataDependent" in name or "data-dependent" in str(error).lower():
            raise FastStepError(
                "the whole step cannot be compiled: the model or the loss reads a tensor's value "
                f"in Python ({lines[0] if lines else name})",
                hint="Take .item(), float(tensor) and `if tensor:` out of both.",
            ) from error
        raise FastStepError(
            f"the whole step cannot be compiled: {name}: {lines[-1] if lines else 'no message'}",
            hint="Keep the loop as it is, or remove the code that this names.",
        ) from error
