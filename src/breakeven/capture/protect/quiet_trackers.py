"""Keep experiment trackers quiet in runs that only measure, and tell which the script used.

Which there are, and how each is made to log nothing, is in ``trackers.toml``.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import msgspec

from breakeven.capture.location import is_user_file
from breakeven.capture.process.as_main import call_after_import

_Function = Callable[..., Any]
_ANY_NAME = inspect.Parameter.VAR_KEYWORD
# In values of the table.
_FOLDER, _NONE = "{folder}", "{none}"
# Variables by which libraries report on their own use no more.
# Source: https://consoledonottrack.com and Hugging Face Hub, "Environment variables".
_TELEMETRY = {"DO_NOT_TRACK": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


class Tracker(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tracker, or another service that a training script reports to.

    What a variable does not reach, since the script has the last word in its code, is reached
    through the functions that the script calls. Those that a version of the tracker does not have
    are left out. A method is written ``Class.method``, a class means its ``__init__``.

    Args:
        name: As its makers write it.
        module: Whose functions and classes these are.
        environment: Variables that it documents; ``{none}`` for one that must not be there.
        forced: Functions and classes whose call makes a run, each with the arguments that it gets
            whatever the script gives it; arguments that it does not take are left out.
        answered: Functions that are not called at all, each with what they return: those that ask.
        ignored: Functions that are not called either, and return nothing: those that log, where
            they take long although nobody listens, are among them.
        refused: Functions that are nothing without an answer of the server; they raise.
    """

    name: str
    module: str
    environment: dict[str, str] = {}
    forced: dict[str, dict[str, str | bool]] = {}
    answered: dict[str, bool] = {}
    ignored: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


# Read once, by the process from which those of the runs are forked.
TRACKERS = msgspec.convert(
    tomllib.loads(Path(__file__).with_name("trackers.toml").read_text("utf-8"))["tracker"],
    tuple[Tracker, ...],
)


class QuietTrackers:
    """Lets trackers log nothing in this process, or to a folder, and those that it starts.

    Args:
        folder: Takes what a tracker must write; is thrown away with the runs.
        trackers: Which.
    """

    def __init__(self, folder: Path, trackers: tuple[Tracker, ...] = TRACKERS) -> None:
        self._folder = folder
        self._trackers = trackers
        self._used: set[str] = set()

    def enter(self) -> None:
        """Set their variables, and wait for their import, for good."""
        os.environ.update(_TELEMETRY)
        for tracker in self._trackers:
            self._set_variables(tracker)
        call_after_import(
            {tracker.module: partial(self._quiet, tracker) for tracker in self._trackers}
        )

    def used(self) -> tuple[str, ...]:
        """Return the names of those that the script logs to, or would have."""
        names = dict.fromkeys(tracker.name for tracker in self._trackers)
        return tuple(name for name in names if name in self._used)

    def _quiet(self, tracker: Tracker, module: ModuleType) -> None:
        """Replace the functions of a tracker that has been imported."""
        file = getattr(module, "__file__", None)
        if file is None or is_user_file(file):  # something of the user's by the same name
            return
        self._set_variables(tracker)  # the script may have set them otherwise
        note = partial(self._used.add, tracker.name)
        for path, arguments in tracker.forced.items():
            led = {name: self._led(value) for name, value in arguments.items()}
            _replace(module, path, partial(_forced, note, led))
        for path, answer in (tracker.answered | dict.fromkeys(tracker.ignored)).items():
            _replace(module, path, partial(_instead, note, lambda answer=answer: answer))
        for path in tracker.refused:
            _replace(module, path, partial(_instead, note, partial(_refuse, tracker.module, path)))

    def _set_variables(self, tracker: Tracker) -> None:
        for name, text in tracker.environment.items():
            value = self._led(text)
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def _led(self, value: Any) -> Any:
        if value == _NONE:
            return None
        return value.replace(_FOLDER, str(self._folder)) if isinstance(value, str) else value


def _replace(module: ModuleType, path: str, wrap: Callable[[_Function], _Function]) -> None:
    """Replace a function, method or constructor, wherever the library's own modules have it."""
    *owners, name = path.split(".")
    owner: Any = functools.reduce(lambda parent, part: getattr(parent, part, None), owners, module)
    # Of a class, what makes a method of it; of a module, also what it imports only when asked.
    found = (inspect.getattr_static if isinstance(owner, type) else getattr)(owner, name, None)
    if isinstance(found, type):
        owner, name = found, "__init__"
        found = found.__init__
    if isinstance(found, classmethod | staticmethod):
        setattr(owner, name, type(found)(wrap(found.__func__)))
    elif callable(found):
        replacement = wrap(found)
        setattr(owner, name, replacement)
        if owner is module:
            _replace_elsewhere(module.__name__, found, replacement)


def _replace_elsewhere(package: str, found: _Function, replacement: _Function) -> None:
    for name, module in sys.modules.copy().items():
        if name.startswith(f"{package}."):
            for key, value in list(vars(module).items()):
                if value is found:
                    setattr(module, key, replacement)


def _forced(
    note: Callable[[], None], arguments: Mapping[str, Any], function: _Function
) -> _Function:
    parameters = inspect.signature(function).parameters
    takes_any = any(parameter.kind is _ANY_NAME for parameter in parameters.values())
    places = {name: place for place, name in enumerate(parameters)}
    taken = {name: arguments[name] for name in arguments if takes_any or name in places}

    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        note()
        values = list(given)
        for name, value in taken.items():
            if places.get(name, len(values)) < len(values):
                values[places[name]] = value
            else:
                named[name] = value
        return function(*values, **named)

    return call


def _instead(note: Callable[[], None], answer: Callable[[], Any], function: _Function) -> _Function:
    @functools.wraps(function)
    def call(*_: Any, **__: Any) -> Any:
        note()
        return answer()

    return call


def _refuse(module: str, path: str) -> NoReturn:
    raise RuntimeError(
        f"breakeven keeps {module}.{path} from its server; --keep-trackers lets it be"
    )
