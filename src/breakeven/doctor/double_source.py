"""The line that makes a model or its data float64."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from breakeven.doctor.rule import Case
from breakeven.doctor.source_lines import calls_in, recorded_calls
from breakeven.source import Source, dotted_name
from breakeven.trace import Location

_DOUBLE_NAMES = frozenset(("float64", "double", "DoubleTensor", "Float64", "complex128", "cdouble"))
_DEFAULTS = ("set_default_dtype", "set_default_tensor_type")
# Tensors made from arrays take their dtype, which is float64 unless someone chose another.
_FROM_ARRAY = ("from_numpy", "as_tensor", "tensor")
_NARROW_NAMES = frozenset(
    ("float32", "float16", "bfloat16", "float", "half", "int64", "int32", "long", "int", "uint8",
     "bool", "FloatTensor", "LongTensor", "single")
)  # fmt: skip


def line_of_doubles(case: Case) -> tuple[Location, str] | None:
    """Return the line where float64 begins, and what it does; None where no source tells.

    The default dtype comes first, then the conversion of a model, then a tensor asked for in
    float64, then one that is made from an array of doubles.
    """
    for lines in (_defaults, _conversions, _dtypes, _arrays):
        for location, what in lines(case):
            return location, what
    return None


def _defaults(case: Case) -> Iterator[tuple[Location, str]]:
    what = "makes float64 the default dtype"
    for call in recorded_calls(case, *_DEFAULTS):
        if call.location is not None and any(name in call.argument for name in _DOUBLE_NAMES):
            yield call.location, what
    for source, call in calls_in(case.sources, *_DEFAULTS):
        if _names_double(call):
            yield source.location(call), what


def _conversions(case: Case) -> Iterator[tuple[Location, str]]:
    what = "converts to float64"
    for call in recorded_calls(case, "Module.double"):
        if call.location is not None:
            yield call.location, what
    found = [
        (source, call)
        for source, call in calls_in(case.sources, "double", "to", "type")
        if isinstance(call.func, ast.Attribute)
        and (call.func.attr == "double" or _names_double(call))
    ]
    # A value converted within a loop may be a statistic; a model is converted before.
    found.sort(key=lambda one: len(one[0].loops_around(one[1].lineno)) > 0)
    for source, call in found:
        # The line of the name: a model may be written over many lines before it is converted.
        line = call.func.end_lineno or call.lineno
        yield Location(file=source.path, line=line), what


def _dtypes(case: Case) -> Iterator[tuple[Location, str]]:
    for source in case.sources:
        for node in source.nodes(ast.keyword):
            assert isinstance(node, ast.keyword)
            call = source.parent(node)
            of_numpy = isinstance(call, ast.Call) and dotted_name(call.func).startswith(
                ("np.", "numpy.")
            )
            if node.arg == "dtype" and not of_numpy and _is_double(node.value):
                yield source.location(node.value), "asks for float64"


def _arrays(case: Case) -> Iterator[tuple[Location, str]]:
    for source, call in calls_in(case.sources, *_FROM_ARRAY):
        called = dotted_name(call.func)
        is_of_torch = called.startswith("torch.") or called == "from_numpy"
        if is_of_torch and called != "torch.tensor" and not _is_narrowed(source, call):
            yield source.location(call), "takes the dtype of an array, float64 by default"


def _is_narrowed(source: Source, call: ast.Call) -> bool:
    """Return whether the statement names another dtype: ``torch.from_numpy(x).float()``."""
    statement: ast.AST = next(
        (node for node in source.parents(call) if isinstance(node, ast.stmt)), call
    )
    return any(
        isinstance(node, ast.Attribute) and node.attr in _NARROW_NAMES
        for node in ast.walk(statement)
    )


def _names_double(call: ast.Call) -> bool:
    return any(map(_is_double, (*call.args, *(given.value for given in call.keywords))))


def _is_double(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value.rpartition(".")[2] in _DOUBLE_NAMES
    return dotted_name(node).rpartition(".")[2] in _DOUBLE_NAMES
