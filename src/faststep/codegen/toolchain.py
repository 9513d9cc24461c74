"""The C compiler, and the cache of its binaries for later runs.

The compiler builds a binary for this processor (``-march=native``). The cache key contains the
source, the compiler's version, the flags and the processor's features, so that machines with a
shared home never run each other's binaries. Never use a cache folder that others can write to.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

from faststep.errors import FastStepError

_FLAGS = (
    *("-std=gnu11", "-O3", "-march=native", "-fPIC", "-shared", "-fopenmp-simd"),
    *("-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"),
    # Report a missing name at compile time, not at load time.
    "-Werror=implicit-function-declaration",
)
if sys.platform == "darwin":  # resolve Python's symbols at load time
    _FLAGS += ("-undefined", "dynamic_lookup")
_TIME_LIMIT_S = 120
_HEADERS = Path(__file__).parent


class CompilerError(FastStepError):
    """There is no C compiler, or it did not compile the step."""


def load(source: str, kind: type[ctypes.CDLL] = ctypes.CDLL) -> ctypes.CDLL:
    """Compile a C source, or find its binary in the cache, and load it.

    Args:
        source: The source; it may include the headers in this module's folder.
        kind: ``ctypes.PyDLL`` for code that calls Python.

    Raises:
        CompilerError: There is no compiler, or it fails or takes too long; or this is Windows.
    """
    compiler = find_compiler()
    text = "".join(path.read_text("utf-8") for path in sorted(_HEADERS.glob("*.h"))) + source
    digest = hashlib.sha256("\0".join([text, *_identity(compiler)]).encode()).hexdigest()
    folder = _cache_folder()
    binary = folder / f"{digest[:32]}.so"
    if not binary.exists():
        _compile(compiler, source, binary)
    return kind(str(binary))


def load_once(source: str) -> ctypes.CDLL:
    """Compile a C source and load it; leave nothing on disk.

    Raises:
        CompilerError: As for ``load``.
    """
    with tempfile.TemporaryDirectory(prefix="faststep-") as name:
        binary = Path(name) / "step.so"
        _compile(find_compiler(), source, binary)
        return ctypes.CDLL(str(binary))


def find_compiler() -> str:
    """Return the C compiler.

    Raises:
        CompilerError: There is no compiler, or this is Windows.
    """
    if not hasattr(os, "getuid"):
        raise CompilerError("generated steps are for Linux and macOS")
    named = os.environ.get("CC")
    for name in [named] if named else ["gcc", "clang", "cc"]:
        found = shutil.which(name.split()[0])
        if found is not None:
            return found
    raise CompilerError(
        "no C compiler was found" if not named else f"there is no C compiler {named} (CC)",
        hint="Install gcc or clang, or name one in the environment variable CC.",
    )


@functools.cache
def _identity(compiler: str) -> tuple[str, ...]:
    """Return the identity of compiler and processor: version, macros and flags."""
    # All macros that the flags define, including the processor's features.
    features = _run([compiler, *_FLAGS[:3], "-dM", "-E", "-x", "c", os.devnull])
    return _run([compiler, "--version"]), features, " ".join(_FLAGS)


def _run(command: list[str]) -> str:
    compiler = command[0]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIME_LIMIT_S, check=True
        )
    except subprocess.TimeoutExpired as error:
        raise CompilerError(f"{compiler} took more than {_TIME_LIMIT_S} s") from error
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if "error" in line]
        raise CompilerError(
            f"{compiler} failed: {lines[0] if lines else error.stderr.strip()[-200:]}"
        ) from error
    except OSError as error:
        raise CompilerError(f"{compiler} does not run: {error}") from error
    return done.stdout


def kept_steps() -> Path:
    """Return the folder of the cached binaries, which may not exist yet."""
    if sys.platform == "darwin":
        caches = Path.home() / "Library" / "Caches"
    else:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return caches / "faststep" / "generated"


def _cache_folder() -> Path:
    """Return the folder of the cached binaries; if it is not private, a folder of this process."""
    folder = kept_steps()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        about = folder.stat()
        is_open = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        is_private = about.st_uid == os.getuid() and not is_open
        if is_private and os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return Path(_folder_of_process().name)


@functools.cache
def _folder_of_process() -> tempfile.TemporaryDirectory[str]:
    """Return a temporary folder that Python removes at the end of the process."""
    return tempfile.TemporaryDirectory(prefix="faststep-")


def _compile(compiler: str, source: str, binary: Path) -> None:
    """Compile in a temporary folder next to the binary, then move the binary into place."""
    with tempfile.TemporaryDirectory(prefix="building-", dir=binary.parent) as name:
        path, made = Path(name) / "step.c", Path(name) / "step.so"
        path.write_text(source, "utf-8")
        outputs = (str(path), "-o", str(made), "-lm", "-pthread")
        _run([compiler, *_FLAGS, f"-I{_HEADERS}", *outputs])
        path.replace(binary.with_suffix(".c"))
        made.replace(binary)
