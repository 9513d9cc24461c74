"""Scripts with ``breakeven.fast_step`` in their loop, and their output."""

from __future__ import annotations

import contextlib
import io

from breakeven.rewrite import SourcePatch, propose_fast_step


def proposed(source: str, file: str = "train.py") -> SourcePatch:
    """Return the proposed patch of a script; fail if there is none."""
    patch = propose_fast_step(source, file=file)
    assert isinstance(patch, SourcePatch), patch
    return patch


def output_of(source: str) -> str:
    """Run a script; return its output."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(source, "train.py", "exec"), {"__name__": "__main__"})
    return said.getvalue()
