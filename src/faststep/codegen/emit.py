"""A program as C.

Statements of the same text, apart from the buffers, are one function that is called with each of
the buffers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from faststep.codegen.program import (
    C_TYPES,
    Buffer,
    Call,
    Const,
    Element,
    Indirect,
    Input,
    Loop,
    Part,
    Program,
    Statement,
    View,
    merge_dims,
)
from faststep.codegen.sharing import choose_parts, is_long

_ALIGN = 64
_LINE = 16  # elements of a line of the cache, at least
_PRELUDE = """\
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "vector_math.h"
#include "libm.h"
#include "sharing.h"
"""
_KERNELS = """\
#define REAL {ctype}
#define NAME(x) {prefix}_##x
#include "kernels.h"
#include "convolution.h"
#include "pooling.h"
#undef REAL
#undef NAME
"""
_PART = """\
static void {{name}}_part(void *const *p, long part) {{{{ {{name}}({pointers}, part); }}}}
"""


# For each part of the samples: its own memory, and arguments that begin with its first sample.
_PART_OF_SAMPLES = """\
static int samples(void *const *arguments, char *workspace) {{
{calls}
  return 0;
}}
static void samples_part(void *const *p, long part) {{
  static const long sources[] = {{{sources}}}, offsets[] = {{{offsets}}};
  void *arguments[{count}];
  char *workspace = (char *)p[1] + part * {size};
  for (long i = 0; i < {count}; i++)
    arguments[i] = ((char *const *)p[0])[sources[i]] + part * offsets[i];
  *(int *)(workspace + {end}) = samples(arguments, workspace);
}}
"""
NO_NUMBERS = "#define update_numbers(options, counts, out)"


def emit(program: Program, numbers: str = NO_NUMBERS) -> tuple[str, int]:
    """Return a program as C, and the bytes of workspace that it needs.

    Args:
        program: What it does.
        numbers: C code that defines ``update_numbers`` of ``driver.h``.

    The code defines ``step``, which returns 1 where an index was out of range, before anything is
    written to an argument; and ``run`` of ``driver.h``, which calls it.
    """
    places, size = _place_buffers(program)
    functions: dict[str, str] = {}
    calls: list[str] = []
    before = ""
    if program.part is not None:
        before, first, bytes_of_part = _part(program.part, functions, places, size)
        calls += first
        size += program.part.parts * bytes_of_part
    calls += _calls(program.statements, places, functions, choose_parts)
    kernels = "".join(
        _KERNELS.format(ctype=ctype, prefix=prefix)
        for ctype, prefix in (("float", "f32"), ("double", "f64"))
    )
    code = "\n".join(text.format(name=name) for text, name in functions.items())
    step = "static int step(void *const *arguments, char *workspace, const struct team *team) {\n"
    step += "  (void)team;\n" + "\n".join(calls)
    step += "\n  return 0;\n}\n"
    return f'{_PRELUDE}{kernels}\n{code}\n{before}{step}{numbers}\n#include "driver.h"\n', size


def _part(
    part: Part, functions: dict[str, str], places: dict[Buffer, int], start: int
) -> tuple[str, list[str], int]:
    """Return what is done for each part of the samples.

    Args:
        part: It.
        functions: Of the whole program.
        places: Of its buffers; those that the part writes are added.
        start: Where in the workspace the memory of the parts begins.

    Returns:
        Its functions, how it is called, and the bytes of memory of each part.
    """
    own, end = _place_buffers(part.program)
    size = end + _ALIGN
    for buffer, copies in part.sums.items():
        for number, copy in enumerate(copies):
            places[copy] = start + number * size + own[buffer]
    calls = _calls(part.program.statements, own, functions, lambda given: [1] * len(given))
    code = _PART_OF_SAMPLES.format(
        calls="\n".join(calls),
        sources=", ".join(map(str, part.sources)),
        offsets=", ".join(map(str, part.offsets)),
        count=len(part.offsets),
        size=size,
        end=end,
    )
    wakes = int(is_long(part.program.statements))
    given = f"(void *const[]){{(void *)arguments, workspace + {start}}}"
    first = [f"  in_parts(team, samples_part, {given}, {part.parts}, {wakes});"]
    if any(isinstance(one, Call) and one.checks for one in part.program.statements):
        first.append(
            f"  for (long part = 0; part < {part.parts}; part++)\n"
            f"    if (*(int *)(workspace + {start + end} + part * {size})) return 1;"
        )
    return code, first, size


def _calls(
    statements: Sequence[Statement],
    places: dict[Buffer, int],
    functions: dict[str, str],
    parts_of: Callable[[Sequence[tuple[Statement, int]]], list[int]],
) -> list[str]:
    """Return the calls of statements; add their functions to those that there are, by text."""
    calls: list[str] = []
    all_parts = parts_of([(one, _most_parts(one)) for one in statements])
    for statement, parts in zip(statements, all_parts, strict=True):
        if isinstance(statement, Loop):
            parameters, body, pointers = _loop(statement, parts)
            returns, checks = "void", False
        else:
            parameters, body, pointers = _call(statement)
            returns, checks = ("int", True) if statement.checks else ("void", False)
        if not body:
            continue
        if parts > 1:
            parameters.append("const long part")
        sizes = f"const long parts = {parts};" if parts > 1 else "const long part = 0, parts = 1;"
        head = (
            f"static __attribute__((noinline)) {returns} {{name}}({', '.join(parameters)}) {{{{\n"
            f"{sizes}\n(void)part, (void)parts;\n"
        )
        text = head + body.replace("{", "{{").replace("}", "}}") + "\n}}\n"
        if parts > 1:
            text += _PART.format(
                pointers=", ".join(f"p[{number}]" for number in range(len(pointers)))
            )
        name = functions.setdefault(text, f"f{len(functions)}")
        arguments = ", ".join(_pointer(view, places) for view in pointers)
        if parts > 1:
            given = f"(void *const[]){{{arguments}}}"
            wakes = int(is_long([statement]))
            calls.append(f"  in_parts(team, {name}_part, {given}, {parts}, {wakes});")
        else:
            calls.append(
                f"  if ({name}({arguments})) return 1;" if checks else f"  {name}({arguments});"
            )
    return calls


def _pointer(view: View, places: dict[Buffer, int]) -> str:
    """Return the address of a view's first element."""
    ctype = C_TYPES[view.dtype]
    offset = f" + {view.offset}" if view.offset else ""
    if view.buffer.is_argument:
        return f"({ctype} *)arguments[{view.buffer.argument}]{offset}"
    return f"({ctype} *)(workspace + {places[view.buffer]}){offset}"


def _call(statement: Call) -> tuple[list[str], str, list[View]]:
    views = [*statement.inputs, *statement.outputs]
    parameters = [
        _parameter(view, number, is_written=number >= len(statement.inputs))
        for number, view in enumerate(views)
    ]
    return parameters, statement.body, views


def _parameter(view: View, number: int, *, is_written: bool) -> str:
    const = "" if is_written else "const "
    return f"{const}{C_TYPES[view.dtype]} *restrict p{number}"


def _loop(loop: Loop, parts: int) -> tuple[list[str], str, list[View]]:
    """Return the parameters, the body and the arguments of a nest of loops."""
    reads, writes = loop.reads(), loop.writes()
    if not writes or 0 in loop.shape:
        return [], "", []
    # Views that begin at the same place are one pointer, since one may be read and written.
    pointers: dict[tuple[Buffer, int], int] = {}
    starts: list[View] = []
    for view in (*reads, *writes):
        if (view.buffer, view.offset) not in pointers:
            pointers[view.buffer, view.offset] = len(starts)
            starts.append(view)
    is_written = {pointers[view.buffer, view.offset] for view in writes}
    parameters = [
        _parameter(view, number, is_written=number in is_written)
        for number, view in enumerate(starts)
    ]
    nest = _nest(loop)

    def index(view: View, skip: int | None = None) -> str:
        strides = view.expanded(loop.shape).strides
        parts = [
            f"{name} * {strides[dims[-1]]}" if strides[dims[-1]] != 1 else name
            for name, (_, dims) in zip(_names(nest), nest, strict=True)
            if strides[dims[-1]] and dims[-1] != skip
        ]
        return " + ".join(parts) or "0"

    def read(view: View) -> str:
        return f"p{pointers[view.buffer, view.offset]}[{index(view)}]"

    names = {element: f"t{number}" for number, element in enumerate(loop.elements)}
    hoisted: dict[View, str] = {}

    def operand(given: Input) -> str:
        if isinstance(given, Element):
            return names[given]
        if isinstance(given, Const):
            return literal(given.value, given.dtype)
        if isinstance(given, Indirect):
            place = f"{operand(given.index)} * {given.view.strides[given.dim]}"
            pointer = f"p{pointers[given.view.buffer, given.view.offset]}"
            return f"{pointer}[{index(given.view, skip=given.dim)} + {place}]"
        if not any(given.strides) and not any(
            view.buffer is given.buffer for view in writes
        ):  # one number for all: read once
            return hoisted.setdefault(given, f"h{len(hoisted)}")
        return read(given)

    by_dim = {
        f"i{dim}": name for name, (_, dims) in zip(_names(nest), nest, strict=True) for dim in dims
    }
    lines: list[str] = []
    overwrites: list[str] = []
    for element in loop.elements:
        operands = [operand(given) for given in element.inputs]
        inner = {f"i{dim}": by_dim.get(f"i{dim}", "0") for dim in range(len(loop.shape))}
        text = element.expression.format(*operands, **inner)
        ctype = C_TYPES[element.dtype]
        if element.dtype == torch.bool and element.expression == "{0}":
            text = f"{text} != 0"
        lines.append(f"const {ctype} {names[element]} = {text};")
        for store in element.stores:
            line = f"{read(store)} = {names[element]};"
            # Others of the loop may still read what an argument was before.
            (overwrites if store.buffer.is_argument else lines).append(line)
    before = [
        f"const {C_TYPES[view.dtype]} {name} = p{pointers[view.buffer, view.offset]}[0];"
        for view, name in hoisted.items()
    ]
    loops = [
        f"for (long {name} = 0; {name} < {size}; {name}++) {{"
        for name, (size, _) in zip(_names(nest), nest, strict=True)
    ]
    if parts > 1:
        name, size = _names(nest)[0], nest[0][0]
        unit = _LINE if len(nest) == 1 else 1
        units = -(-size // unit)
        before.append(f"const long from_ = part * {units} / parts * {unit};")
        before.append(
            f"const long to_ = part + 1 < parts ? (part + 1) * {units} / parts * {unit} : {size};"
        )
        loops[0] = f"for (long {name} = from_; {name} < to_; {name}++) {{"
    if loops:
        loops[-1] = f"#pragma omp simd\n{loops[-1]}"
    body = "\n".join([*before, *loops, *lines, *overwrites, "}" * len(loops)])
    return parameters, body, starts


def _nest(loop: Loop) -> list[tuple[int, list[int]]]:
    """Return the loops of a nest, from the outermost on: sizes and dimensions."""
    used = "".join(element.expression for element in loop.elements)
    fixed = {dim for dim in range(len(loop.shape)) if f"{{i{dim}}}" in used}
    for element in loop.elements:
        for given in element.inputs:
            if isinstance(given, Indirect):
                fixed.add(given.dim)
    accesses = [view.expanded(loop.shape).strides for view in _direct_views(loop)]
    return merge_dims(loop.shape, loop.order, accesses, fixed)


def _most_parts(statement: Statement) -> int:
    """Return in how many parts a statement can be done: a loop, of the outermost of its nest."""
    if not isinstance(statement, Loop):
        return statement.most_parts
    nest = _nest(statement)
    if not nest:
        return 1
    size, _ = nest[0]
    return size // _LINE if len(nest) == 1 else size


def _direct_views(loop: Loop) -> list[View]:
    found = list(loop.writes())
    for element in loop.elements:
        for given in element.inputs:
            while isinstance(given, Indirect):
                found.append(given.view)
                given = given.index
            if isinstance(given, View):
                found.append(given)
    return found


def _names(nest: Sequence[tuple[int, list[int]]]) -> list[str]:
    return [f"j{number}" for number in range(len(nest))]


def literal(value: float, dtype: torch.dtype) -> str:
    """Return a number as C writes it."""
    if dtype in (torch.float32, torch.float64):
        suffix = "f" if dtype == torch.float32 else ""
        if math.isnan(value):
            return "NAN"
        if math.isinf(value):
            return "(-INFINITY)" if value < 0 else "INFINITY"
        return f"({value!r}{suffix})" if value < 0 else f"{value!r}{suffix}"
    number = int(value)
    if number == -(2**63):  # C has no such number: it is the negative of one that is too large
        return f"({number + 1} - 1)"
    return f"({number})" if number < 0 else str(number)


def _place_buffers(program: Program) -> tuple[dict[Buffer, int], int]:
    """Return where each buffer lies in the workspace, and the size of that.

    What a part of the samples keeps is not the program's own: it has no place yet.
    """
    given = set[Buffer]()
    if program.part is not None:
        given = {one for copies in program.part.sums.values() for one in copies}
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for number, statement in enumerate(program.statements):
        for view in (*statement.reads(), *statement.writes()):
            if not view.buffer.is_argument and view.buffer not in given:
                first.setdefault(view.buffer, number)
                last[view.buffer] = number
    last.update((view.buffer, len(program.statements)) for view in program.kept)
    ending: dict[int, list[Buffer]] = {}
    for buffer, number in last.items():
        ending.setdefault(number, []).append(buffer)
    starting: dict[int, list[Buffer]] = {}
    for buffer, number in first.items():
        starting.setdefault(number, []).append(buffer)
    places: dict[Buffer, int] = {}
    free: list[tuple[int, int]] = []  # offset and size, by offset
    end = 0
    for number in range(len(program.statements)):
        for buffer in starting.get(number, ()):
            size = _bytes(buffer)
            fitting = [hole for hole in free if hole[1] >= size]
            if fitting:
                hole = min(fitting, key=lambda one: one[1])
                free.remove(hole)
                places[buffer] = hole[0]
                if hole[1] > size:
                    free.append((hole[0] + size, hole[1] - size))
            else:
                places[buffer] = end
                end += size
        for buffer in ending.get(number, ()):
            free.append((places[buffer], _bytes(buffer)))
        free = _merged(free)
    return places, end


def _bytes(buffer: Buffer) -> int:
    return math.ceil(buffer.size * buffer.dtype.itemsize / _ALIGN) * _ALIGN


def _merged(holes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for offset, size in sorted(holes):
        if merged and sum(merged[-1]) == offset:
            merged[-1] = (merged[-1][0], merged[-1][1] + size)
        else:
            merged.append((offset, size))
    return merged
