"""Emission of a program as C.

Statements that differ only in their buffers share one function. Threads share the parts of long
statements. The generator fixes the parts, so that sums do not depend on the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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
    Program,
    Statement,
    View,
    count,
    merge_dims,
    views_of,
)

# Costs are in multiply-adds, about 50 per nanosecond.
# A part takes 10 us: handing it out takes under 1 us, and waiting for a late thread stays short.
_PART_COST = 500_000
# Least shared work of a step, 150 us: waking a thread may take 50 us.
_LEAST_SHARED = 7_500_000
# Work of 100 us.
_LONG = 5_000_000
# Most parts of a statement; measurements used fewer threads.
_MOST_PARTS = 32
# Parts of the samples: their largest number; the overhead of each for a statement; the largest
# fraction of a step for all that overhead, plus writing and reading the sums over parts.
_MOST_SAMPLE_PARTS, _STATEMENT, _MOST_EXTRA = 8, 1_000, 0.07
# Costs per element of a loop: an operator; a value read or written, mostly in the L2 cache; an
# operator that calls a function, which is a polynomial.
_OPERATOR, _ACCESS, _FUNCTION = 0.2, 2.0, 6.0

_ALIGN = 64
_LINE = 16  # float32 elements of a cache line of 64 bytes
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


# Each part of the samples has its own memory, and arguments that begin at its first sample.
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

    The code defines ``step``, and ``run`` of ``driver.h``, which calls it. If an index is out of
    range, then ``step`` returns 1 before it writes to an argument.

    Args:
        program: The program.
        numbers: C code that defines ``update_numbers`` of ``driver.h``.
    """
    places, size = _place_buffers(program)
    functions: dict[str, str] = {}
    calls: list[str] = []
    before = ""
    if program.part is not None:
        part = program.part
        own, end = _place_buffers(part.program)
        # Put the memory of the parts after that of the whole.
        start, size_of_part = size, end + _ALIGN
        size += part.parts * size_of_part
        for buffer, copies in part.sums.items():
            for number, copy in enumerate(copies):
                places[copy] = start + number * size_of_part + own[buffer]
        of_part = _calls(part.program.statements, own, functions, is_shared=False)
        before = _PART_OF_SAMPLES.format(
            calls="\n".join(of_part),
            sources=", ".join(map(str, part.sources)),
            offsets=", ".join(map(str, part.offsets)),
            count=len(part.offsets),
            size=size_of_part,
            end=end,
        )
        wakes = int(_is_long(part.program.statements))
        given = f"(void *const[]){{(void *)arguments, workspace + {start}}}"
        calls.append(f"  in_parts(team, samples_part, {given}, {part.parts}, {wakes});")
        if any(isinstance(one, Call) and one.checks for one in part.program.statements):
            calls.append(
                f"  for (long part = 0; part < {part.parts}; part++)\n"
                f"    if (*(int *)(workspace + {start + end} + part * {size_of_part})) return 1;"
            )
    calls += _calls(program.statements, places, functions)
    kernels = "".join(
        _KERNELS.format(ctype=ctype, prefix=prefix)
        for ctype, prefix in (("float", "f32"), ("double", "f64"))
    )
    code = "\n".join(text.format(name=name) for text, name in functions.items())
    step = "static int step(void *const *arguments, char *workspace, const struct team *team) {\n"
    step += "  (void)team;\n" + "\n".join(calls)
    step += "\n  return 0;\n}\n"
    return f'{_PRELUDE}{kernels}\n{code}\n{before}{step}{numbers}\n#include "driver.h"\n', size


def _calls(
    statements: Sequence[Statement],
    places: dict[Buffer, int],
    functions: dict[str, str],
    *,
    is_shared: bool = True,
) -> list[str]:
    """Return the calls of statements; add new functions to ``functions``, keyed by text."""
    loops = {one: _LoopCode(one) for one in statements if isinstance(one, Loop)}
    all_parts = [1] * len(statements)
    if is_shared:
        most = (
            loops[one].most_parts if isinstance(one, Loop) else one.most_parts for one in statements
        )
        all_parts = choose_parts(list(zip(statements, most, strict=True)))
    calls: list[str] = []
    for statement, parts in zip(statements, all_parts, strict=True):
        if isinstance(statement, Loop):
            code = loops[statement]
            if not statement.writes or 0 in statement.shape:
                continue
            body, views, written, checks = code.body(parts), code.views, code.written, False
        else:
            body, checks = statement.body, statement.checks
            views = [*statement.reads, *statement.writes]
            written = range(len(statement.reads), len(views))
        parameters = [
            f"{'' if number in written else 'const '}{C_TYPES[view.dtype]} *restrict p{number}"
            for number, view in enumerate(views)
        ]
        sizes = "const long part = 0, parts = 1;"
        if parts > 1:
            parameters.append("const long part")
            sizes = f"const long parts = {parts};"
        head = (
            f"static __attribute__((noinline)) {'int' if checks else 'void'} "
            f"{{name}}({', '.join(parameters)}) {{{{\n{sizes}\n(void)part, (void)parts;\n"
        )
        text = head + body.replace("{", "{{").replace("}", "}}") + "\n}}\n"
        if parts > 1:
            text += _PART.format(pointers=", ".join(f"p[{n}]" for n in range(len(views))))
        name = functions.setdefault(text, f"f{len(functions)}")
        arguments = ", ".join(_pointer(view, places) for view in views)
        if parts > 1:
            given = f"{name}_part, (void *const[]){{{arguments}}}, {parts}"
            calls.append(f"  in_parts(team, {given}, {int(_is_long([statement]))});")
        elif checks:
            calls.append(f"  if ({name}({arguments})) return 1;")
        else:
            calls.append(f"  {name}({arguments});")
    return calls


def _pointer(view: View, places: dict[Buffer, int]) -> str:
    """Return the address of a view's first element."""
    ctype = C_TYPES[view.dtype]
    offset = f" + {view.offset}" if view.offset else ""
    if view.buffer.argument is not None:
        return f"({ctype} *)arguments[{view.buffer.argument}]{offset}"
    return f"({ctype} *)(workspace + {places[view.buffer]}){offset}"


class _LoopCode:
    """A nest of loops as C."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        # Views that begin at the same place share a pointer: a loop may read and write that place.
        self._pointers: dict[tuple[Buffer, int], int] = {}
        self.views: list[View] = []
        for view in (*loop.reads, *loop.writes):
            if (view.buffer, view.offset) not in self._pointers:
                self._pointers[view.buffer, view.offset] = len(self.views)
                self.views.append(view)
        self.written = {self._pointers[view.buffer, view.offset] for view in loop.writes}
        # Sizes and dimensions of the loops, from the outermost on; the indices are j0, j1, ...
        used = "".join(element.expression for element in loop.elements)
        fixed = {dim for dim in range(len(loop.shape)) if f"{{i{dim}}}" in used}
        accesses = [view.expanded(loop.shape).strides for view in loop.writes]
        for element in loop.elements:
            for given in element.inputs:
                if isinstance(given, Indirect):
                    fixed.add(given.dim)
                accesses += [view.expanded(loop.shape).strides for view in views_of(given)]
        self._nest = merge_dims(loop.shape, loop.order, accesses, fixed)
        self._names = {element: f"t{number}" for number, element in enumerate(loop.elements)}
        self._hoisted: dict[View, str] = {}

    @property
    def most_parts(self) -> int:
        """The largest number of parts, which divide the outermost loop."""
        size = self._nest[0][0] if self._nest else 1
        return size // _LINE if len(self._nest) == 1 else size

    def _pointer(self, view: View) -> str:
        return f"p{self._pointers[view.buffer, view.offset]}"

    def _index(self, view: View, skip: int | None = None) -> str:
        strides = view.expanded(self._loop.shape).strides
        parts = [
            f"j{number} * {strides[dim]}" if strides[dim] != 1 else f"j{number}"
            for number, (_, (*_, dim)) in enumerate(self._nest)
            if strides[dim] and dim != skip
        ]
        return " + ".join(parts) or "0"

    def _operand(self, given: Input) -> str:
        if isinstance(given, Element):
            return self._names[given]
        if isinstance(given, Const):
            return literal(given.value, given.dtype)
        if isinstance(given, Indirect):
            place = f"{self._operand(given.index)} * {given.view.strides[given.dim]}"
            return f"{self._pointer(given.view)}[{self._index(given.view, given.dim)} + {place}]"
        is_written = any(view.buffer is given.buffer for view in self._loop.writes)
        if not any(given.strides) and not is_written:  # read a broadcast number once
            return self._hoisted.setdefault(given, f"h{len(self._hoisted)}")
        return f"{self._pointer(given)}[{self._index(given)}]"

    def body(self, parts: int) -> str:
        """Return the loops; for several parts, those of part number `part`."""
        indices = {f"i{dim}": "0" for dim in range(len(self._loop.shape))}
        for number, (_, dims) in enumerate(self._nest):
            indices |= {f"i{dim}": f"j{number}" for dim in dims}
        lines: list[str] = []
        overwrites: list[str] = []
        for element in self._loop.elements:
            name, operands = self._names[element], map(self._operand, element.inputs)
            text = element.expression.format(*operands, **indices)
            if element.dtype == torch.bool and element.expression == "{0}":
                text = f"{text} != 0"
            lines.append(f"const {C_TYPES[element.dtype]} {name} = {text};")
            for store in element.stores:
                line = f"{self._pointer(store)}[{self._index(store)}] = {name};"
                # Write arguments last: other operators of the loop may read their old values.
                (lines if store.buffer.argument is None else overwrites).append(line)
        before = [
            f"const {C_TYPES[view.dtype]} {name} = {self._pointer(view)}[0];"
            for view, name in self._hoisted.items()
        ]
        loops = [
            f"for (long j{number} = 0; j{number} < {size}; j{number}++) {{"
            for number, (size, _) in enumerate(self._nest)
        ]
        if parts > 1:
            size, unit = self._nest[0][0], _LINE if len(self._nest) == 1 else 1
            each = f"{-(-size // unit)} / parts * {unit}"
            before.append(f"const long from_ = part * {each};")
            before.append(f"const long to_ = part + 1 < parts ? (part + 1) * {each} : {size};")
            loops[0] = "for (long j0 = from_; j0 < to_; j0++) {"
        if loops:
            loops[-1] = f"#pragma omp simd\n{loops[-1]}"
        return "\n".join([*before, *loops, *lines, *overwrites, "}" * len(loops)])


def choose_parts(statements: Sequence[tuple[Statement, int]]) -> list[int]:
    """Return the number of parts of each statement; 1 for an undivided one.

    Args:
        statements: The statements of a step, each with its largest number of parts.
    """
    costs = [_cost(statement) for statement, _ in statements]
    wanted = [
        max(1, min(_MOST_PARTS, int(cost / _PART_COST), most))
        for cost, (_, most) in zip(costs, statements, strict=True)
    ]
    shared = sum(cost for cost, parts in zip(costs, wanted, strict=True) if parts > 1)
    return wanted if shared >= _LEAST_SHARED else [1] * len(wanted)


def choose_sample_parts(half: Program, num_samples: int, lanes: int) -> int:
    """Return the number of parts of a step's samples; 0 for an undivided step.

    Args:
        half: The program for half of the samples.
        num_samples: Number of samples of the batch.
        lanes: Number of float32 elements in a vector.
    """
    costs = [2 * _cost(statement) for statement in half.statements]
    total = sum(costs)
    if sum(cost for cost in costs if cost >= 2 * _PART_COST) >= _LEAST_SHARED:
        return 0  # threads share its statements instead, in any number
    sums = sum(count(view.shape) for view in half.kept)
    chosen, parts = 0, 2
    while (
        parts <= _MOST_SAMPLE_PARTS
        and num_samples % (parts * lanes) == 0
        and total / parts >= _PART_COST
        and 2 * _ACCESS * parts * sums + (parts - 1) * len(half.statements) * _STATEMENT
        <= _MOST_EXTRA * total
    ):
        chosen, parts = parts, 2 * parts
    return chosen


def _is_long(statements: Sequence[Statement]) -> bool:
    """Whether statements take much longer than waking a thread."""
    return sum(map(_cost, statements)) >= _LONG


def _cost(statement: Statement) -> float:
    if not isinstance(statement, Loop):
        return statement.operations
    accesses = len(statement.reads) + len(statement.writes)
    functions = sum("_" in element.expression for element in statement.elements)
    operators = len(statement.elements) - functions
    cost = _OPERATOR * operators + _ACCESS * accesses + _FUNCTION * functions
    return cost * count(statement.shape)


def literal(value: float, dtype: torch.dtype) -> str:
    """Return a number as a C literal."""
    if dtype in (torch.float32, torch.float64):
        suffix = "f" if dtype == torch.float32 else ""
        if math.isnan(value):
            return "NAN"
        if math.isinf(value):
            return "(-INFINITY)" if value < 0 else "INFINITY"
        return f"({value!r}{suffix})" if value < 0 else f"{value!r}{suffix}"
    number = int(value)
    if number == -(2**63):  # C has no literal for it: 2**63 is too large
        return f"({number + 1} - 1)"
    return f"({number})" if number < 0 else str(number)


def _place_buffers(program: Program) -> tuple[dict[Buffer, int], int]:
    """Return the offset of each buffer in the workspace, and the workspace's size, in bytes.

    A place is free again after the last statement that reads it, which keeps small steps in the
    caches. Skip the sums that the parts of the samples keep: they lie in the parts' memory.
    """
    given = set[Buffer]()
    if program.part is not None:
        given = {one for copies in program.part.sums.values() for one in copies}
    used = [
        list(dict.fromkeys(view.buffer for view in (*one.reads, *one.writes)))
        for one in program.statements
    ]
    last = {buffer: number for number, buffers in enumerate(used) for buffer in buffers}
    last.update((view.buffer, len(used)) for view in program.kept)
    places: dict[Buffer, int] = {}
    free: list[tuple[int, int]] = []  # offset and size, by offset
    end = 0
    for number, buffers in enumerate(used):
        own = [one for one in buffers if one.argument is None and one not in given]
        sizes = {one: math.ceil(one.size * one.dtype.itemsize / _ALIGN) * _ALIGN for one in own}
        for buffer, size in sizes.items():
            if buffer in places:
                continue
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
        free += [(places[one], size) for one, size in sizes.items() if last[one] == number]
        merged: list[tuple[int, int]] = []
        for offset, size in sorted(free):
            if merged and sum(merged[-1]) == offset:
                offset, size = merged[-1][0], merged.pop()[1] + size
            merged.append((offset, size))
        free = merged
    return places, end
