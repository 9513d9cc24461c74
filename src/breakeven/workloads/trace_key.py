"""What a trace depends on: the key under which it is kept."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from breakeven.trace import StepCase

_PACKAGES = ("breakeven", "torch", "torchvision", "transformers")
# Folders whose code decides what is recorded of a workload.
_RECORDERS = ("capture", "workloads", "trace")


def trace_key(case: StepCase) -> dict[str, str]:
    """Return the case, the versions of the packages that build it, and the code that records it."""
    return {"case": msgspec.json.encode(case).decode(), **_versions(), "recorder": _recorder()}


@cache
def _versions() -> dict[str, str]:
    versions: dict[str, str] = {}
    for name in _PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = ""
    return versions


@cache
def _recorder() -> str:
    package = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for folder in _RECORDERS:
        for file in sorted((package / folder).glob("*.py")):
            digest.update(file.name.encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:32]
