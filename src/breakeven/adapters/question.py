"""One function that answers a question about any training."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args

from breakeven.errors import UsageError
from breakeven.report import CheckReport, ExplainReport, read_document
from breakeven.studies import (
    CostRequest,
    Report,
    StudyOptions,
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

Question = Literal["check", "explain", "normal", "cost", "sweep"]
_LENGTH = {"num_steps", "num_epochs"}
_COST = (_LENGTH | {field.name for field in fields(CostRequest)}) - {"length"}
# Options of each question, of any training and of scripts only.
_OPTIONS: Mapping[str, tuple[set[str], set[str]]] = {
    "check": (set(), {*_LENGTH, "compile_mode", "tries_generated"}),
    "explain": ({"rules"}, {"tries_cpu"}),
    "normal": ({"measured"}, set()),
    "cost": (_COST, set()),
    "sweep": (set(), {"is_fresh"}),
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
            measured speed normal? ``cost``: what does the whole training cost? ``sweep``: how do
            step times depend on ``batch_sizes``?
        devices: Names of GPUs, six by default. Not for ``cost``, which compares ``machines``.
        host: The host of the GPUs: ``auto``, ``here``, a kind of machine, or a CPU's name.
        batch_sizes: Sizes of a ``sweep`` of a script, set in its DataLoader.
        **options: More options of the question: ``rules`` (explain), ``measured`` (normal),
            ``num_steps`` or ``num_epochs`` and the fields of ``CostRequest`` (cost). A script also
            takes those of ``StudyOptions``, and ``num_steps``, ``num_epochs``, ``compile_mode``,
            ``tries_generated`` (check), ``tries_cpu`` (explain), ``is_fresh`` (sweep). A function
            or trainer also takes ``budget_s``, the seconds of timed steps.

    Raises:
        UsageError: If ``what`` is none of these, or an option is wrong or not of this question.
        BreakevenError: If the training gives no answer, or a device or host is unknown.
    """
    if question not in get_args(Question):
        raise UsageError(
            f"{question!r} is no question", hint=f"ask one of {', '.join(get_args(Question))}"
        )
    named = _named(devices=devices, host=host, batch_sizes=batch_sizes) | options
    is_path = isinstance(what, str | os.PathLike)
    common, of_scripts = _OPTIONS[question]
    if is_path and Path(what).suffix.lower() != ".json":
        known = {*StudyOptions.__annotations__, "devices", *common, *of_scripts}
        if question == "sweep":
            known = (known | {"batch_sizes"}) - {"measured", "launcher"}
        _ensure_known(named, known - ({"devices"} if question == "cost" else set()), question)
        return Report(_of_script(os.fspath(what), question, named))
    if question == "sweep":
        raise UsageError("only a script is swept", hint='ask("train.py", batch_sizes=(16, 32))')
    if is_path or isinstance(what, Report | CheckReport | ExplainReport):
        run = read_document(what) if is_path else what.value if isinstance(what, Report) else what
        wanted = {*common, "devices"} if question in ("explain", "normal") else common
        _ensure_known(named, wanted, f"{question} of a stored run")
        return Report(_of_run(run, question, named))
    # Imported here, since all else works without torch.
    from breakeven.adapters.training_loops import training_loop

    loop = training_loop(what)
    if loop is None and not callable(what):
        raise UsageError(
            f"a {type(what).__name__} is no training",
            hint="pass a script's path, a function that does one step, or a trainer",
        )
    of_check = {"devices", "host", "budget_s"} - ({"devices"} if question == "cost" else set())
    _ensure_known(named, of_check | common, f"{question} in this process")
    checked = check_step(
        loop or what,  # type: ignore[arg-type]  # it is callable
        knows_other_cpus=True,
        **{name: value for name, value in named.items() if name in of_check},
    )
    rest = {name: value for name, value in named.items() if name in common}
    if question in ("explain", "normal") and devices:
        rest["devices"] = devices
    return Report(_of_run(checked, question, rest))


def _named(*, devices: Sequence[str], host: str, batch_sizes: Sequence[int]) -> dict[str, Any]:
    """Return the options that differ from their defaults."""
    if isinstance(devices, str):
        raise UsageError(f"devices is the text {devices!r}", hint=f"pass [{devices!r}]")
    given = {"devices": tuple(devices), "batch_sizes": tuple(batch_sizes)}
    named: dict[str, Any] = {name: value for name, value in given.items() if value}
    return named if host == "auto" else named | {"host": host}


def _ensure_known(named: Mapping[str, Any], known: set[str], what: str) -> None:
    if unknown := sorted(named.keys() - known):
        raise UsageError(
            f"{what} has no option {unknown[0]}",
            hint=f"its options: {', '.join(sorted(known)) or 'none'}",
        )


def _length(named: dict[str, Any]) -> TrainingLength:
    return TrainingLength(**{name: named.pop(name, None) for name in _LENGTH})


def _cost_request(named: dict[str, Any]) -> CostRequest:
    asked = {name: named.pop(name) for name in _COST - _LENGTH if name in named}
    return CostRequest(length=_length(named), **asked)


def _of_script(target: str, question: Question, named: dict[str, Any]) -> Any:
    match question:
        case "check":
            return check_target(target, length=_length(named), knows_other_cpus=True, **named)
        case "explain":
            return explain_target(target, **named)
        case "normal":
            return normal_target(target, **named)
        case "cost":
            return cost_target(target, _cost_request(named), **named)
        case "sweep":
            sizes = ",".join(map(str, named.pop("batch_sizes", ())))
            return sweep_target(target, axes=(parse_axis(f"batch_size={sizes}"),), **named)


def _of_run(run: Any, question: Question, named: dict[str, Any]) -> Any:
    match question:
        case "explain":
            return explain_run(run, **named)
        case "normal":
            return normal_run(run, **named)
        case "cost":
            return cost_run(run, _cost_request(named))
        case _:
            return run
