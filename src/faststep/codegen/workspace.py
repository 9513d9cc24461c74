"""Where buffers lie in the memory of a step.

What lies between operators shares one workspace: a buffer's place is free again after the last
statement that reads it, which keeps small steps within the caches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from faststep.codegen.program import Buffer, Program

ALIGN = 64


def place_buffers(program: Program) -> tuple[dict[Buffer, int], int]:
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
    return math.ceil(buffer.size * buffer.dtype.itemsize / ALIGN) * ALIGN


def _merged(holes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for offset, size in sorted(holes):
        if merged and sum(merged[-1]) == offset:
            merged[-1] = (merged[-1][0], merged[-1][1] + size)
        else:
            merged.append((offset, size))
    return merged
