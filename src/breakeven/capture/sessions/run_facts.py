"""What is known of a run besides its steps: facts of the process, files read as code."""

from __future__ import annotations

import linecache
import os
import shutil
import sys
import tokenize
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import torch
from msgspec.structs import replace

from breakeven.capture.location import file_digest, is_user_file
from breakeven.capture.messages import SourceFile
from breakeven.capture.target import Target, TargetKind, as_text
from breakeven.processor import num_cores
from breakeven.trace import RunFacts, SourceText, StepTrace

# Values that are looked at: some 10 ms of work.
_MAX_VALUES = 4_000_000


def with_machine_facts(facts: RunFacts, parameters: Iterable[torch.Tensor]) -> RunFacts:
    """Return ``facts`` with those of the process and of the optimizers' parameters.

    Args:
        facts: What the recorded steps tell.
        parameters: What the optimizers update, each once.
    """
    known = list(parameters)
    return replace(
        facts,
        subnormal_fraction=subnormal_fraction(known),
        num_parameter_tensors=len(known),
        num_threads=torch.get_num_threads(),
        num_interop_threads=torch.get_num_interop_threads(),
        num_cores=num_cores(),
        default_dtype=str(torch.get_default_dtype()).removeprefix("torch."),
        has_cuda_build=torch._C._has_cuda,
        has_nvidia_device=Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi") is not None,
    )


def subnormal_fraction(parameters: Iterable[torch.Tensor]) -> float:
    """Return the part of the values of parameters and their gradients that are subnormal.

    Of a large model the first four million values count.
    """
    num_values = num_subnormal = 0
    for parameter in parameters:
        for tensor in (parameter.detach(), parameter.grad):
            wanted = _MAX_VALUES - num_values
            if tensor is None or tensor.is_sparse or not tensor.is_floating_point() or wanted <= 0:
                continue
            values = tensor.detach().reshape(-1)[:wanted].abs()
            tiny = torch.finfo(values.dtype).tiny
            num_values += values.numel()
            num_subnormal += int(((values > 0) & (values < tiny)).sum())
    return num_subnormal / num_values if num_values else 0.0


# No file that a person writes is larger; generated ones and their trees cost seconds.
_MAX_SOURCE_BYTES = 1_000_000
# Of files that no event of the step leads to; what they hold matters to few rules.
_MAX_OTHER_BYTES = 2_000_000


def user_sources(target: Target) -> tuple[SourceFile, ...]:
    """Return the user's files that ``target`` ran or imported until now, in order of their names.

    Files that the script opens itself, such as its data, are not among them.
    """
    paths = {os.path.realpath(name) for name in _names_of_code(target)}
    found: list[SourceFile] = []
    for path in sorted(paths):
        digest = file_digest(path)
        if digest is not None:  # removed meanwhile, as generated modules are
            found.append(SourceFile(path=as_text(path), sha256=digest))
    return tuple(found)


def mentions_cuda(target: Target) -> bool:
    """Return whether a line of the user's files that were run or imported names a GPU."""
    return any(
        "cuda" in line.partition("#")[0]
        for name in _names_of_code(target)
        for line in _text_of(name).splitlines()
    )


def source_texts(target: Target, trace: StepTrace) -> tuple[SourceText, ...]:
    """Return the text of the user's files that ``target`` ran or imported until now.

    Those that the trace names come first, cells of a notebook among them, then the others as far
    as there is room. Files that are too large to be code are left out.
    """
    facts, texts = trace.facts, dict[str, str]()
    named = (*facts.loaders, *facts.optimizers, *facts.model_calls, *facts.calls)
    datasets = (one.dataset_location for one in facts.loaders)
    for location in (*chain(*trace.stacks), *(fact.location for fact in named), *datasets):
        if location is not None and location.file not in texts:
            texts[location.file] = _text_of(location.file)
    room = _MAX_OTHER_BYTES
    for name in sorted(_names_of_code(target)):
        path = as_text(name)
        if path not in texts and room > 0:
            texts[path] = _text_of(name)
            room -= len(texts[path])
    return tuple(SourceText(path=path, text=text) for path, text in texts.items() if text)


def _names_of_code(target: Target) -> set[str]:
    """Return the user's files that this process has as modules, and the target's own."""
    names = {getattr(module, "__file__", None) for module in sys.modules.copy().values()}
    if target.kind is not TargetKind.MODULE and target.raw_path:
        names.add(target.path)  # a script that runs as `__main__` may have replaced that module
    return {name for name in names if isinstance(name, str) and is_user_file(name)}


def _text_of(name: str) -> str:
    """Return the text of a file of Python; empty if there is none that can be shown."""
    try:
        if Path(name).stat().st_size > _MAX_SOURCE_BYTES:
            return ""
        with tokenize.open(name) as file:
            return file.read()
    except (SyntaxError, UnicodeDecodeError):  # it says another encoding than it has
        return Path(name).read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        # A notebook's cell is no file, but Python keeps its lines for tracebacks.
        return "".join(linecache.getlines(name))
