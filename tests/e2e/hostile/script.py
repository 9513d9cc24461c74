"""One hostile script, and what is to become of it."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

# Every script but those of bytes begins so; `training` lies beside it.
_START = """\
import ctypes, os, shutil, signal, subprocess, sys, threading, time
from pathlib import Path
import torch
from training import steps, train

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostile:
    """One script.

    Args:
        name: What it does.
        text: The file.
        reason: What the message must match where it is refused; empty where it is answered.
        needs_layer: It changes files from outside of Python, which only an overlay keeps from being
            real.
        time_limit_s: Of each run; short if it is what ends them.
        in_sample: `.ci/run` tries these alone; `.ci/full` tries all.
    """

    name: str
    text: bytes
    reason: str = ""
    needs_layer: bool = False
    time_limit_s: float = 20.0
    in_sample: bool = False


def answered(name: str, text: str | bytes, **options: Any) -> Hostile:
    """Return a script that is answered.

    Args:
        name: What it does.
        text: What follows the imports; or the whole file, as bytes.
        options: Fields of `Hostile`.
    """
    return Hostile(name=name, text=_whole(text), **options)


def refused(name: str, reason: str, text: str | bytes, **options: Any) -> Hostile:
    """Return a script that is refused for a reason, a regular expression; see `answered`."""
    return Hostile(name=name, text=_whole(text), reason=reason, **options)


def _whole(text: str | bytes) -> bytes:
    if isinstance(text, bytes):
        return text
    return (_START + textwrap.dedent(text).lstrip()).encode()
