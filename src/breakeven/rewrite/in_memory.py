"""The code of a script whose steps are compiled calls, made from its text without a file for it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from types import CodeType
from typing import Any

from breakeven.rewrite.source_patch import NoPatch, propose_fast_step

# What a traceback underlines: nothing in a line whose text is another one in the file.
_NO_COLUMN = -1


def code_of_fast_step(source: bytes, file: str) -> CodeType | NoPatch:
    """Return the code of a script with ``breakeven.fast_step`` in its loop.

    Its lines have the numbers of the script as it is, so that tracebacks, warnings and
    ``inspect.getsource`` show the user's file. What is added counts as the line that it stands
    before; a call of the step as the statement that computed the loss.

    Args:
        source: What is in the file.
        file: Its name, for tracebacks.
    """
    patch = propose_fast_step(source, file=file)
    if isinstance(patch, NoPatch):
        return patch
    tree = ast.parse(patch.text)
    _number_as(tree, patch.origins)
    return compile(tree, file, "exec", dont_inherit=True)


def _number_as(tree: ast.Module, origins: Sequence[tuple[int, bool]]) -> None:
    for node in ast.walk(tree):
        # Statements, expressions, arguments, names of imports, patterns.
        if not hasattr(node, "lineno"):
            continue
        place: Any = node
        (first, is_same), (last, ends_same) = (
            origins[number - 1] for number in (place.lineno, place.end_lineno)
        )
        place.lineno, place.end_lineno = first, max(first, last)
        if not (is_same and ends_same):
            place.end_lineno = first
            place.col_offset = place.end_col_offset = _NO_COLUMN
