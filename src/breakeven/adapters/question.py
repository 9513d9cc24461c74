"""One function that answers a question about any training."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from inspect import signature
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from breakeven.errors import UsageError
from breakeven.report import CheckReport, ExplainReport, printable, read_document
from breakeven.studies import (
    CostRequest,
    Report,
    TrainingLength,
    check_step,
    check_target,
    cost_run,
    cost_target,
    explain_run,
    explain_target,
    normal_run,
    normal_target,
    parse_axis,
    sweep_target,
)

Question = Literal["check", "explain", "normal", "cost"]
_Texts = tuple[str, ...]
_Count = Annotated[int, msgspec.Meta(ge=1)]
_Amount = Annotated[float, msgspec.Meta(gt=0)]
_CountOrNone = _Count | None
_AmountOrNone = _Amount | None
# The type of an option, and what to pass.
_OPTIONS: dict[str, tuple[Any, str]] = {
    "devices": (_Texts, "names, such as ['T4', 'L4']"),
    "host": (str, "'auto', 'here', a kind of machine such as 'cloud', or the name of a CPU"),
    "batch_sizes": (tuple[_Count, ...], "whole numbers, such as [16, 64]"),
    "budget_s": (_Amount, "seconds, such as 1.0"),
    "time_limit_s": (_Amount, "seconds, such as 300.0"),
    "arguments": (_Texts, "the script's arguments, such as ['--lr', '0.1']"),
    "measured": (_Texts, "speeds, such as ['T4: 340 it/s']"),
    "rules": (_Texts, "codes, such as ['SYNC001']"),
    "num_steps": (_CountOrNone, "a whole number, such as 10_000"),
    "num_epochs": (_CountOrNone, "a whole number, such as 90"),
    "batch_size": (_CountOrNone, "a whole number, such as 64"),
    "machines": (_Texts, "names, such as ['g5.xlarge']"),
    "clouds": (_Texts, "ids of providers, such as ['aws']"),
    "num_gpus": (tuple[_Count, ...], "whole numbers, such as [1, 2, 4]"),
    "deadline_s": (_AmountOrNone, "seconds, such as 8 * 3600"),
    "budget_usd": (_AmountOrNone, "dollars, such as 20.0"),
}


def ask(
    what: object,
    *,
    question: Question = "check",
    devices: Sequence[str] = (),
    host: str = "auto",
    batch_sizes: Sequence[int] = (),
    **options: Any,
) -> Report:
    """Answer a question about a training: would another device pay, and what slows it down?

    A script runs in child processes that discard its files. Everything else runs in this process,
    on the CPU: a framework trains a copy, and a function's modules, optimizers and random numbers
    are restored. Stored runs are not run again.

    Args:
        what: One of: the path of a script (``train.py`` or ``train.py:function``); the path of a
            run that ``breakeven check -o`` wrote, or its `Report`; a function without arguments
            that does one training step; Lightning's ``(trainer, module)`` or ``(trainer, module,
            loader)``; a ``Trainer`` of transformers; an agent of Stable-Baselines3.
        question: ``check``: does a GPU pay off? ``explain``: what takes the time? ``normal``: is a
            measured speed normal? ``cost``: what does the whole training cost?
        devices: Names of GPUs, six by default. Not for ``cost``, which compares ``machines``.
        host: The host of the GPUs: ``auto``, ``here``, a kind of machine, or a CPU's name. A stored
            run has its own.
        batch_sizes: Check a script at these sizes of its DataLoader; the answer is a sweep.
        **options: Further arguments of the study. A script takes those of ``StudyOptions``, a
            function or trainer ``budget_s``; ``cost`` and the ``check`` of a script take
            ``num_steps`` or ``num_epochs``, ``explain`` takes ``rules``, ``normal`` takes
            ``measured``, ``cost`` takes the fields of ``CostRequest``.

    Raises:
        UsageError: If ``what`` is none of these, or the question or an option is wrong.
        BreakevenError: If the training gives no answer, or a device or host is unknown.
        TypeError: If the study has no such option.
    """
    if question not in get_args(Question):
        raise UsageError(
            f"{question!r} is no question", hint=f"ask one of {', '.join(get_args(Question))}"
        )
    for name, value in {
        "devices": devices, "host": host, "batch_sizes": batch_sizes, **options
    }.items():  # fmt: skip
        _ensure_type(name, value)
    of_device = {"devices": tuple(devices)} if devices else {}
    of_host = {} if host == "auto" else {"host": host}
    target = os.fspath(what) if isinstance(what, str | os.PathLike) else ""
    is_script = bool(target) and Path(target).suffix.lower() != ".json"
    if options.keys() & {"num_steps", "num_epochs"}:
        if question != "cost" and not (is_script and question == "check"):
            raise TypeError("num_steps and num_epochs are for the check of a script, and for cost")
        length = {name: options.pop(name, None) for name in ("num_steps", "num_epochs")}
        options["length"] = TrainingLength(**length)
    if question == "cost":
        asked = {
            field.name: options.pop(field.name)
            for field in fields(CostRequest)
            if field.name in options
        }
        options["request"] = CostRequest(**{"length": TrainingLength(), **asked})

    study: Callable[..., Any]
    if batch_sizes:
        if not target or question != "check":
            raise UsageError("batch_sizes is for a check of a script", hint="leave it out")
        options["axes"] = (parse_axis(f"batch_size={','.join(map(str, batch_sizes))}"),)
        return Report(sweep_target(target, **of_device, **of_host, **options))
    if is_script:
        study = {
            "check": check_target, "explain": explain_target, "normal": normal_target,
            "cost": cost_target,
        }[question]  # fmt: skip
        return Report(study(target, **of_device, **of_host, **options))
    study = {
        "check": _itself, "explain": explain_run, "normal": normal_run, "cost": cost_run
    }[question]  # fmt: skip
    if target or isinstance(what, Report | CheckReport | ExplainReport):
        signature(study).bind(what, **of_device, **of_host, **options)
        run = read_document(target) if target else what.value if isinstance(what, Report) else what
    else:
        budget = {"budget_s": options.pop("budget_s")} if "budget_s" in options else {}
        here = budget | of_host | (of_device if question != "cost" else {})
        if question == "check":
            of_device = {}
        signature(study).bind(what, **of_device, **options)  # refuse an option before the steps run
        run = _checked_here(what, here)
    return Report(study(run, **of_device, **options))


def _ensure_type(name: str, value: object) -> None:
    if name not in _OPTIONS:
        return
    wanted, example = _OPTIONS[name]
    try:
        msgspec.convert(_as_builtin(value), wanted)
    except msgspec.ValidationError:
        raise UsageError(
            f"{name} cannot be {printable(repr(value), 80)}", hint=f"pass {example}"
        ) from None


def _as_builtin(value: object) -> object:
    """Return numbers of NumPy and any sequence of values as Python's own."""
    match value:
        case bool() | str() | bytes() | Iterator():  # reading an iterator would empty it
            return value
        case Integral():
            return int(value)
        case Real():
            return float(value)
        case Iterable():
            return tuple(map(_as_builtin, value))
        case _:
            return value


def _itself(run: Any) -> Any:
    return run


def _checked_here(what: object, options: dict[str, Any]) -> CheckReport:
    # Imported here, since all else works without torch.
    from breakeven.adapters.training_loops import training_loop

    step: Any = training_loop(what) or what
    if step is what and not callable(what):
        raise UsageError(
            f"an object of type {type(what).__name__} is no training",
            hint="pass a script's path, a function that does one step, or a trainer",
        )
    return check_step(step, knows_other_cpus=True, **options)
