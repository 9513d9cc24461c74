"""PREC001: the step computes in float64.

What it does:
    Finds matrix products, convolutions and most other operators working on float64, and the
    line that makes the model or its data so.

Why it costs time:
    GPUs for data centres compute float64 at half or less of their rate for float32, all others
    at 1/32 to 1/64 of it, and tensor cores are out of reach. Twice the bytes move, too.

Evidence:
    In public reports kernels became up to 32 to 64 times faster on consumer cards. It mostly
    begins by accident: NumPy's arrays are float64, and an error about dtypes is "solved" by
    ``.double()`` or ``set_default_dtype``.

Fix:
    Convert the data once, when it is loaded; leave the model in float32.

    ```python
    x = torch.from_numpy(features)
    model = Net().double().to(device)
    ```

    ```python
    x = torch.from_numpy(features).float()
    model = Net().to(device)
    ```

Known limits:
    Whether the results need float64 is not known; some simulations and factorizations do.
    The gain shown is that of the whole step in float32, TF32 as torch's switches say.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from breakeven.cost import Family
from breakeven.device import Precision
from breakeven.doctor.events import PRODUCTS
from breakeven.doctor.precision_edits import doubles_as_floats
from breakeven.doctor.rule import Case, Found, Occurrence
from breakeven.doctor.source_lines import recorded_calls
from breakeven.doctor.step_times import device_times_ns
from breakeven.source import SourceFile, arguments_of, dotted_name, last_name, nodes_in, text_of
from breakeven.trace import Location, Op
from breakeven.units import format_percent

CAUSE = "FP64"

_DOUBLES: Final = frozenset(("float64", "complex128"))
# Below that, float64 is a choice for some numbers (a sum, a small factorization) and no accident.
_MIN_DOUBLE_FRACTION = 0.5
_MIN_DOUBLE_TIME_FRACTION = 0.1

_DOUBLE_NAMES: Final = frozenset(
    ("float64", "double", "DoubleTensor", "Float64", "complex128", "cdouble")
)
_DEFAULTS: Final = ("set_default_dtype", "set_default_tensor_type")
# Tensors made from arrays take their dtype, which is float64 unless someone chose another.
_NARROW_NAMES: Final = frozenset(
    ("float32", "float16", "bfloat16", "float", "half", "int64", "int32", "long", "int", "uint8",
     "bool", "FloatTensor", "LongTensor", "single")
)  # fmt: skip


def detect(case: Case) -> Found:
    events = tuple(index for index, op in case.each_on_device() if _has_doubles(op))
    if not events:
        return
    share = _double_share(case)
    times = device_times_ns(case, lambda kernel: kernel.family is not Family.LINALG)
    time_ns = sum(times.get(index, 0.0) for index in events)
    is_slow = time_ns >= _MIN_DOUBLE_TIME_FRACTION * case.step_ns
    if share < _MIN_DOUBLE_FRACTION and not is_slow:
        return
    first = (case.trace.events[events[0]].location, "has the first of them")
    location, how = next(_origins(case), first)
    yield Occurrence(
        title="the step computes in float64",
        fix="convert data and model to float32: .float() where the data is loaded, no .double()",
        evidence=f"{len(events)} operators work on float64, {format_percent(share)} of "
        f"the arithmetic of products and convolutions; this line {how}",
        location=location,
        events=events,
        edit=doubles_as_floats(case.trace),
    )


def _has_doubles(op: Op) -> bool:
    # Scalars in float64 (the scale of a GradScaler, a step counter) cost nothing.
    return any(spec.dtype in _DOUBLES and spec.numel > 1 for spec in (*op.inputs, *op.outputs))


def _double_share(case: Case) -> float:
    """Return the part of the arithmetic in float64: of products, else of all kernels."""
    kernels = [kernel for kernel in case.program.kernels if kernel.family is not Family.LINALG]
    products = [kernel for kernel in kernels if kernel.family in PRODUCTS]
    flop = sum(kernel.flop for kernel in products or kernels)
    in_double = sum(k.flop for k in products or kernels if k.precision is Precision.FP64)
    return in_double / flop if flop > 0 else 0.0


def _origins(case: Case) -> Iterator[tuple[Location, str]]:
    """Yield the lines where float64 may begin, and what they do, the surest first.

    The default dtype comes first, then the conversion of a model, then a tensor asked for in
    float64, then one that is made from an array of doubles.
    """
    for call in recorded_calls(case, *_DEFAULTS):
        if call.location is not None and any(name in call.argument for name in _DOUBLE_NAMES):
            yield call.location, "makes float64 the default dtype"
    for source, call in case.sources.calls(*_DEFAULTS):
        if _names_double(call):
            yield source.location(call), "makes float64 the default dtype"
    for location in _conversions(case):
        yield location, "converts to float64"
    for source, node in case.sources.nodes(ast.keyword):
        called = source.parent(node)
        of_numpy = called is not None and dotted_name(called).startswith(("np.", "numpy."))
        if node.arg == "dtype" and not of_numpy and _is_double(node.value):
            yield source.location(node.value), "asks for float64"
    for source, call in case.sources.calls("from_numpy", "torch.as_tensor"):
        called = dotted_name(call.func)
        is_of_torch = called.startswith("torch.") or called == "from_numpy"
        if is_of_torch and not _is_narrowed(source, call):
            yield source.location(call), "takes the dtype of an array, float64 by default"


def _conversions(case: Case) -> Iterator[Location]:
    for call in recorded_calls(case, "Module.double"):
        if call.location is not None:
            yield call.location
    found = [
        (source, call)
        for source, call in case.sources.calls("double", "to", "type")
        if isinstance(call.func, ast.Attribute)
        and (call.func.attr == "double" or _names_double(call))
    ]
    # A value converted within a loop may be a statistic; a model is converted before.
    found.sort(key=lambda one: len(one[0].loops_around(one[1].lineno)) > 0)
    for source, call in found:
        # The line of the name: a model may be written over many lines before it is converted.
        yield Location(file=source.path, line=call.func.end_lineno or call.lineno)


def _is_narrowed(source: SourceFile, call: ast.Call) -> bool:
    """Return whether the statement names another dtype: ``torch.from_numpy(x).float()``."""
    statement = next(node for node in source.parents(call) if isinstance(node, ast.stmt))
    return any(part.attr in _NARROW_NAMES for part in nodes_in(statement, ast.Attribute))


def _names_double(call: ast.Call) -> bool:
    return any(map(_is_double, arguments_of(call)))


def _is_double(node: ast.expr) -> bool:
    text = text_of(node)
    name = last_name(node) if text is None else text.rpartition(".")[2]
    return name in _DOUBLE_NAMES
