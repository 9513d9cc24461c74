"""Facts of a run besides its steps: properties of the process, and its source files."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import torch
from msgspec.structs import replace

from breakeven.capture.location import file_digest, is_user_file, text_of
from breakeven.capture.messages import SourceFile
from breakeven.capture.target import Target, TargetKind, as_text
from breakeven.processor import num_cores
from breakeven.trace import RunFacts, SourceText, StepTrace

# Limit on the values to check: some 10 ms of work.
_MAX_VALUES = 4_000_000


def with_machine_facts(facts: RunFacts, parameters: Iterable[torch.Tensor]) -> RunFacts:
    """Return ``facts`` with those of the process and of the optimizers' parameters.

    Args:
        facts: Facts from the recorded steps.
        parameters: The optimizers' parameters, each once.
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
    """Return the share of subnormal values among parameters and their gradients, 0 to 1.

    In a large model only the first four million values count.
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


# Limit for files that no event of the step refers to; few rules need them.
_MAX_OTHER_BYTES = 2_000_000


def user_sources(target: Target) -> tuple[SourceFile, ...]:
    """Return the user's files that ``target`` has run or imported so far, sorted by name.

    Files that the script opens itself, such as its data, are not included.
    """
    paths = {os.path.realpath(name) for name in _names_of_code(target)}
    found: list[SourceFile] = []
    for path in sorted(paths):
        digest = file_digest(path)
        if digest is not None:  # a file may be removed meanwhile, such as a generated module
            found.append(SourceFile(path=as_text(path), sha256=digest))
    return tuple(found)


def source_texts(target: Target, trace: StepTrace) -> tuple[SourceText, ...]:
    """Return the text of the user's files that ``target`` has run or imported so far.

    Files in the trace come first, including cells of a notebook. Others follow up to a size limit.
    Files too large to be code are left out.
    """
    facts, texts = trace.facts, dict[str, str]()
    named = (*facts.loaders, *facts.optimizers, *facts.model_calls, *facts.calls)
    datasets = (one.dataset_location for one in facts.loaders)
    for location in (*chain(*trace.stacks), *(fact.location for fact in named), *datasets):
        if location is not None and location.file not in texts:
            texts[location.file] = text_of(location.file)
    room = _MAX_OTHER_BYTES
    for name in sorted(_names_of_code(target)):
        path = as_text(name)
        if path not in texts and room > 0:
            texts[path] = text_of(name)
            room -= len(texts[path])
    return tuple(SourceText(path=path, text=text) for path, text in texts.items() if text)


def _names_of_code(target: Target) -> set[str]:
    """Return the files of the user's modules in this process, and the target's own."""
    names = {getattr(module, "__file__", None) for module in sys.modules.copy().values()}
    if target.kind is not TargetKind.MODULE and target.raw_path:
        names.add(target.path)  # a script running as `__main__` may have replaced that module
    return {name for name in names if isinstance(name, str) and is_user_file(name)}
