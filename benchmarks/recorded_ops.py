"""The operators that breakeven records of a step, against those that torch's profiler sees.

Run ``python benchmarks/recorded_ops.py`` in an environment with breakeven, where the repository is.
Each script is recorded on a fake GPU, and run on the CPU under ``torch.profiler``, which is
asked for the step after the third. Compared are operators that compute, where they reach the
dispatcher below autograd and autocast: of what the profiler shows, composites are taken apart, and
what an operator's kernel calls inside is left out. Views and allocations run no kernel, and are
not compared. What differs on purpose has a name; what has none is a fault of the recording.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from breakeven.capture import Launcher, RunRequest, TracedRun, find_target
from breakeven.timing import find_round_ends
from breakeven.trace import Copy, Op, Phase, StepTrace, Sync

ROOT = Path(__file__).resolve().parents[1]
_EXAMPLES, _SCRIPTS = ROOT / "examples", ROOT / "tests" / "e2e" / "scripts"
SCRIPTS: tuple[Path, ...] = (
    *(_EXAMPLES / f"{name}.py" for name in (
        "amp_unet", "disc_mlp", "fast_step_mlp", "mnist_mlp", "rnn_stream", "small_cnn",
        "tiny_transformer", "trainer_class",
    )),
    *(_SCRIPTS / f"{name}.py" for name in (
        "accumulation", "compiled_autograd", "compiles", "functions", "gan", "lstm_on_cpu",
        "masks_and_classes", "own_backward", "packed_sequences", "speech", "steps_in_thread",
        "threads", "torchscript", "validation",
    )),
)  # fmt: skip
_TIME_LIMIT_S = 120.0
_PROFILED_ROUND = 3
_BESIDE_S = 0.05

_OPTIMIZER, _COPIES, _CASTS, _LOADER = "lists of tensors", "copies", "casts", "loader"
_ONE_HOT, _MASKS, _IN_PLACE, _BESIDE = "classes", "masks", "in place", "beside"

# Composites that CUDA runs as one operator, or otherwise, by torch's name.
_IN_ONE = {
    "dropout": ("aten::dropout",),
    "recurrent layer": ("aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"),
    "attention": ("aten::scaled_dot_product_attention",),
    _ONE_HOT: ("aten::one_hot",),
}
_RECORDED_IN_ONE = {
    "native_dropout": "dropout",
    "_cudnn_rnn": "recurrent layer",
    "_scaled_dot_product_flash_attention": "attention",
    "_scaled_dot_product_efficient_attention": "attention",
}
NAMED = {
    "dropout": "CUDA runs it as one operator",
    "recurrent layer": "CUDA runs it as one operator, of cuDNN",
    "attention": "CUDA runs it as one operator, and another than the CPU",
    _ONE_HOT: "the CPU looks for classes out of bounds, CUDA in the kernel that uses them",
    _MASKS: "what CUDA assigns under a mask without waiting is written as masked_fill",
    _IN_PLACE: "autograd works in place where nobody looks on, as the recorder does",
    _OPTIMIZER: "CUDA updates, unscales and clips lists of tensors, the CPU one tensor at a time",
    _COPIES: "what is copied between host and device stays where it is natively",
    _CASTS: "an autocast region for CUDA casts nothing on the CPU",
    _LOADER: "what a DataLoader computes on the host is recorded as the time that it takes",
    _BESIDE: "threads with a rhythm of their own compute more, the longer a step takes",
}
# They compute nothing.
_ALLOCATIONS = frozenset(
    {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "lift_fresh"}
)
_UNDER_MASK = {"masked_fill": "index_put", "masked_fill_": "index_put_"}
_UPDATE = "update of the parameters"
# With which a DataLoader that begins an epoch draws the seed of its workers.
_SEED = ("random_", "_local_scalar_dense")
_READS = frozenset({"item", "bool", "float", "int", "format"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Native:
    """The operators of a step as the profiler sees them.

    Args:
        ops: The name of each, and the named difference that it is part of; empty for none.
        composites: How many calls there are of each composite that CUDA runs as one operator.
    """

    ops: tuple[tuple[str, str], ...]
    composites: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A step recorded and profiled.

    Args:
        num_equal: Operators that both have.
        named: Operators that differ, by the name of the difference.
        unexplained: Other operators: positive where recorded alone, negative where native alone.
    """

    num_equal: int
    named: dict[str, int]
    unexplained: dict[str, int]


def compare(trace: StepTrace, native: Native) -> Comparison:
    """Return what a recorded step and a profiled one have in common."""
    counts: Counter[str] = Counter()
    expected: Counter[str] = Counter()
    named: Counter[str] = Counter()
    beside = {name for name, difference in native.ops if difference == _BESIDE}
    on_device = trace.uses_device
    composites = Counter(native.composites)
    for name, difference in native.ops:
        composite = _RECORDED_IN_ONE.get(name.removesuffix("_backward"))
        if composite is not None and not difference and on_device:  # TorchScript does so too
            named[composite] += 1
            composites[composite] += not name.endswith("_backward")
        elif difference in (_LOADER, _BESIDE) or (difference and on_device):
            named[difference] += 1
        else:
            expected[name] += 1
    for event in trace.events:
        if isinstance(event, Copy):
            named[_COPIES] += 1
        elif isinstance(event, Sync) and event.kind in _READS:
            counts["_local_scalar_dense"] += 1
        elif isinstance(event, Op):
            name = event.name.split(".")[1]
            composite = _RECORDED_IN_ONE.get(name.removesuffix("_backward"))
            if not _computes(f"aten::{name}"):
                continue
            if composite is not None:
                named[composite] += 1
                # One that either has alone is no difference of ways to run it.
                counts[f"({composite})"] += not name.endswith("_backward")
            elif event.phase is Phase.DATA:
                named[_LOADER] += 1
            elif on_device and event.phase is Phase.OPTIMIZER:
                named[_OPTIMIZER] += 1
            else:
                counts[name] += 1
    if on_device:
        expected.update({f"({name})": number for name, number in composites.items()})
    num_equal = (counts & expected).total()
    only_recorded, only_native = counts - expected, expected - counts
    if trace.settings.autocast_dtype:
        named[_CASTS] += only_recorded.pop("_to_copy", 0)
    named[_BESIDE] += sum(only_recorded.pop(name, 0) for name in beside)
    for name in list(only_recorded):
        for other, difference in ((_UNDER_MASK.get(name, ""), _MASKS), (f"{name}_", _IN_PLACE)):
            same = min(only_recorded[name], only_native[other])
            named[difference] += same
            only_recorded[name] -= same
            only_native[other] -= same
    # The recorded step may be the first of an epoch; the profiled one is early in the first.
    seeds = min(only_recorded[name] for name in _SEED)
    named[_LOADER] += seeds * len(_SEED)
    only_recorded.subtract(dict.fromkeys(_SEED, seeds))
    copied = min(only_native["copy_"], len(trace.copies))
    named[_COPIES] += copied
    only_native["copy_"] -= copied
    only_recorded.subtract(only_native)
    return Comparison(
        num_equal=num_equal,
        named={name: number for name, number in named.items() if number},
        unexplained={name: number for name, number in only_recorded.items() if number},
    )


class _Profile:
    """Takes a profile apart into the operators that reach the dispatcher below autograd."""

    def __init__(self, roots: Sequence[Any]) -> None:
        self.ops: list[tuple[str, str]] = []
        self.composites: Counter[str] = Counter()
        # Autograd's numbers of the operators within composites: their backward has the same.
        self._composite_of: dict[int, str] = {}
        # What comes between the backward pass and the update prepares the update.
        self._since_backward = 0
        beside = _threads_beside(roots)
        for root in sorted(roots, key=lambda root: root.start_time_ns):
            self._walk(root, _BESIDE if root.start_tid in beside else "")

    def _walk(self, event: Any, difference: str) -> None:
        name: str = event.name
        number = getattr(event.extra_fields, "sequence_number", -1)
        if name.startswith("autograd::engine::evaluate_function"):
            difference = self._composite_of.get(number, "")
        elif name == _UPDATE:
            difference = _OPTIMIZER
            self.ops[self._since_backward :] = [
                # Whether a gradient overflowed is read from one tensor as from many.
                (own, other or ("" if own == "_local_scalar_dense" else _OPTIMIZER))
                for own, other in self.ops[self._since_backward :]
            ]
        elif name.startswith("enumerate(DataLoader)"):
            difference = _LOADER
        for composite, names in _IN_ONE.items():
            if name in names and not difference:
                difference = composite
                self.composites[composite] += composite != _ONE_HOT
        if difference in _IN_ONE and number >= 0:
            self._composite_of.setdefault(number, difference)
        children = list(event.children)
        if not name.startswith("aten::") or _is_taken_apart(name, children):
            for child in children:
                self._walk(child, difference)
        elif _computes(name):
            self._add(name.removeprefix("aten::"), difference)
        if name.startswith("autograd::engine::evaluate_function"):
            self._since_backward = len(self.ops)

    def _add(self, name: str, difference: str) -> None:
        if difference == _ONE_HOT and name not in ("aminmax", "_local_scalar_dense"):
            difference = ""  # the rest of it is the same
        self.ops.append((name, difference))


def _threads_beside(roots: Sequence[Any]) -> set[int]:
    """Return the threads that neither update nor make a node of autograd's graph."""
    numbers: dict[int, set[int]] = {}
    updating: set[int] = set()
    for root in roots:
        if root.name == _UPDATE:
            updating.add(root.start_tid)
        # A thread's number grows with each node that it makes.
        numbers.setdefault(root.start_tid, set()).update(_numbers_in(root))
    return {thread for thread, own in numbers.items() if len(own) < 2} - updating


def _numbers_in(event: Any) -> set[int]:
    own = {getattr(event.extra_fields, "sequence_number", -1)} - {-1}
    return own.union(*map(_numbers_in, event.children))


def _is_taken_apart(name: str, children: Sequence[Any]) -> bool:
    """Return whether an operator is only made of others."""
    keys = [_keys_of(schema) for schema in _schemas(name) if "out" not in schema.overload_name]
    if any(composite for composite, _ in keys) and not any(own for _, own in keys):
        return True
    # Some overloads of these are composites: those that call the other operator.
    return name in _PARTLY and any(child.name == _PARTLY[name] for child in children)


_PARTLY = {"aten::max": "aten::maximum", "aten::min": "aten::minimum"}


def _keys_of(schema: Any) -> tuple[bool, bool]:
    """Return whether an overload is a composite, and whether it has a kernel of its own."""
    full = f"{schema.name}.{schema.overload_name}".removesuffix(".")
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return has_kernel(full, "CompositeImplicitAutograd"), any(
        has_kernel(full, key) for key in ("CPU", "CompositeExplicitAutograd")
    )


def _computes(name: str) -> bool:
    """Return whether an operator is neither a view nor an allocation."""
    return name.removeprefix("aten::") not in _ALLOCATIONS and not any(
        any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
        for schema in _schemas(name)
    )


@cache
def _schemas(name: str) -> tuple[Any, ...]:
    """Return the overloads of an operator, without those that TorchScript alone has."""
    return tuple(
        schema
        for schema in torch._C._jit_get_schemas_for_operator(name)
        if torch._C._dispatch_has_kernel(f"{name}.{schema.overload_name}".removesuffix("."))
    )


def profile_step(script: str, output: Path) -> None:
    """Run a script as the CPU does, and write down one step as the profiler sees it."""
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    from breakeven.capture.pretend.cuda_graphs import CudaGraphs
    from breakeven.capture.pretend.redirect import redirect_cuda_to_cpu

    optimizers: list[int] = []
    profiler = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        experimental_config=torch.profiler._ExperimentalConfig(profile_all_threads=True),
    )

    def end_update(optimizer: int) -> None:
        optimizers.append(optimizer)
        ends = list(find_round_ends(optimizers))
        if not ends or ends[-1] != len(optimizers) - 1:
            return
        if len(ends) == _PROFILED_ROUND:
            profiler.start()
        elif len(ends) > _PROFILED_ROUND:
            if threading.active_count() > 1:  # what those beside compute at times is to be seen
                time.sleep(_BESIDE_S)
            profiler.stop()
            results = profiler.profiler.kineto_results
            found = _Profile(results.experimental_event_tree())
            output.write_text(json.dumps([found.ops, found.composites]))
            os._exit(0)

    graphs = CudaGraphs(end_update)
    # torch's own range ends after the hooks, so after the profile.
    updates: list[torch.profiler.record_function] = []

    def before(*_: Any) -> None:
        updates.append(torch.profiler.record_function(_UPDATE))
        updates[-1].__enter__()

    def after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        updates.pop().__exit__(None, None, None)
        graphs.end_update(id(optimizer))

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)
    sys.argv = [script]
    sys.path.insert(0, str(Path(script).parent))
    with redirect_cuda_to_cpu(has_cuda=True, graphs=graphs):
        runpy.run_path(script, run_name="__main__")


class ComparisonError(Exception):
    """A script of which there are no two steps to compare."""


def compare_script(launcher: Launcher, script: Path) -> Comparison:
    """Record a script and profile it."""
    target = find_target(str(script))
    run = launcher.run(RunRequest(target=target, is_traced=True, time_limit_s=_TIME_LIMIT_S))
    if not isinstance(run, TracedRun):
        raise ComparisonError(f"could not be recorded: {run.kind} {run.message}")
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "ops.json"
        done = subprocess.run(
            [sys.executable, __file__, "--native", str(script), str(output)],
            capture_output=True, text=True, timeout=_TIME_LIMIT_S, check=False,
        )  # fmt: skip
        if not output.exists():
            raise ComparisonError(f"could not be profiled: {done.stderr[-2000:]}")
        ops, composites = json.loads(output.read_text())
    native = Native(ops=tuple((name, other) for name, other in ops), composites=composites)
    return compare(run.trace, native)


def main() -> int:
    """Print the table; return 1 where a difference has no name."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scripts", nargs="*", type=Path, help="default: those of the repository")
    parser.add_argument("--native", nargs=2, metavar=("SCRIPT", "OUTPUT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.native:
        profile_step(options.native[0], Path(options.native[1]))
        return 1
    used: set[str] = set()
    is_explained = True
    print(f"{'script':<24}{'equal':>7}{'named':>7}{'unexplained':>13}")
    with Launcher() as launcher:
        for script in options.scripts or SCRIPTS:
            try:
                found = compare_script(launcher, script)
            except ComparisonError as error:
                is_explained = False
                print(f"{script.stem:<24}{error}", flush=True)
                continue
            unexplained = sum(map(abs, found.unexplained.values()))
            is_explained = is_explained and not unexplained
            used |= found.named.keys()
            details = [f"{name} {number}" for name, number in found.named.items()]
            details += [f"{name} {number:+d}!" for name, number in found.unexplained.items()]
            counts = f"{found.num_equal:>7}{sum(found.named.values()):>7}{unexplained:>13}"
            print(f"{script.stem:<24}{counts}  {', '.join(details)}", flush=True)
    for name in sorted(used):
        print(f"{name}: {NAMED[name]}")
    return 0 if is_explained else 1


if __name__ == "__main__":
    sys.exit(main())
