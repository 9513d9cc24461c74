"""Functions that run on a node of a Ray cluster, in child processes apart from Ray's worker.

All input and output is JSON, so that a node with other software can still explain a refusal.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from breakeven.capture import (
    KEEP_NOTHING,
    Keep,
    Launcher,
    PlainRun,
    RunFailure,
    RunRequest,
    TargetKind,
    file_digest,
)
from breakeven.errors import BreakevenError, Caveat
from breakeven.progress import SilentProgress
from breakeven.store import MachineKey, installed_version, machine_key, machine_lock
from breakeven.studies.engine import TORCH_SETTINGS, time_at_point

_LOW_PRIORITY = Caveat(
    code="low-priority",
    message="Ray lowers the priority of its tasks, and breakeven may not raise it again: start "
    "Ray with RAY_worker_niceness=0",
)
SHARED_FILES = "every node needs the same files at the same paths: use a shared folder"


class NodePlace(msgspec.Struct, frozen=True, kw_only=True):
    """The environment of a script, which should match the local one.

    Args:
        raw_folder: Working directory.
        settings: Environment variables of torch and its libraries; others of that kind are unset.
        keep: Side effects of the script that are real.
    """

    raw_folder: bytes
    settings: dict[str, str]
    keep: Keep = KEEP_NOTHING

    @classmethod
    def here(cls, keep: Keep = KEEP_NOTHING) -> NodePlace:
        """Return the environment of a script on this machine.

        Args:
            keep: Its side effects that are real.
        """
        return cls(raw_folder=os.fsencode(Path.cwd()), settings=_settings(), keep=keep)

    @property
    def folder(self) -> str:
        """Return the working directory as a string for Python's functions."""
        return os.fsdecode(self.raw_folder)


class NodeTask(msgspec.Struct, frozen=True, kw_only=True):
    """One run for a node to make.

    Args:
        request: The run.
        place: Its environment.
        target_sha256: Digest of the target's file in hexadecimal; empty for a module.
    """

    request: RunRequest
    place: NodePlace
    target_sha256: str


class NodeMachine(msgspec.Struct, frozen=True, kw_only=True, tag="machine"):
    """The machine of a node, and its software."""

    machine: MachineKey


class NodeRun(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    """One run that a node has made.

    Args:
        answer: Its result.
        output: The end of the script's output.
    """

    answer: PlainRun | RunFailure
    output: str


class NodeRefusal(msgspec.Struct, frozen=True, kw_only=True, tag="refusal"):
    """The reason why a node cannot do a task.

    Args:
        message: The problem, as the end of a sentence that begins with the node.
        hint: How to solve it.
    """

    message: str
    hint: str


NodeAnswer = NodeMachine | NodeRun | NodeRefusal


def run_on_node(part: str, own_version: str, data: bytes) -> bytes:
    """Run a function of this module, unless the node has another version of breakeven.

    Args:
        part: ``describe`` or ``measure``.
        own_version: Version of the machine that asks.
        data: Argument of the function.

    Returns:
        Its answer, or a ``NodeRefusal``, as JSON.
    """
    there = installed_version("breakeven")
    if there == own_version:
        return describe(data) if part == "describe" else measure(data)
    refusal = NodeRefusal(
        message=f"has breakeven {there}, and here is {own_version}",
        hint="install the same version of breakeven on every node",
    )
    return msgspec.json.encode(refusal)


def describe(data: bytes) -> bytes:
    """Describe this node.

    Args:
        data: A ``NodePlace`` as JSON.

    Returns:
        Its ``NodeMachine``, or a ``NodeRefusal``, as JSON.
    """
    try:
        ready = _WARM.launcher(msgspec.json.decode(data, type=NodePlace)).ready()
    except BreakevenError as error:
        return _WARM.give_up(error)
    machine = machine_key(processor=ready.processor, torch_version=ready.torch_version)
    return msgspec.json.encode(NodeMachine(machine=machine))


def measure(data: bytes) -> bytes:
    """Make a run as without Ray, in a separate process.

    Args:
        data: A ``NodeTask`` as JSON.

    Returns:
        Its ``NodeRun``, or a ``NodeRefusal``, as JSON.
    """
    task = msgspec.json.decode(data, type=NodeTask)
    try:
        _check_target(task)
        # Import torch inside the lock, since that too would disturb another measurement.
        with machine_lock():
            launcher = _WARM.launcher(task.place)
            done = time_at_point(launcher, task.request, _WARM.insisting, SilentProgress())
    except BreakevenError as error:
        return _WARM.give_up(error)
    answer = done.answer
    if isinstance(answer, PlainRun):
        answer = replace(answer, caveats=(*answer.caveats, *_WARM.caveats))
    return msgspec.json.encode(NodeRun(answer=answer, output=done.output))


class _RefusedError(BreakevenError):
    """A refusal; its message is the end of a sentence that begins with the node."""


class _WarmLauncher:
    """The launcher of this Ray worker, kept across tasks so that torch is imported only once.

    When the worker ends, the launcher's processes see their pipe close, and end too.
    """

    def __init__(self) -> None:
        self._launcher: Launcher | None = None
        self._place: NodePlace | None = None
        self.caveats: tuple[Caveat, ...] = ()
        # Scripts that refuse to run without a GPU.
        self.insisting: set[bytes] = set()

    def launcher(self, place: NodePlace) -> Launcher:
        """Return a launcher whose runs have the environment ``place``."""
        if self._launcher is None or self._place != place:
            self._close()
            with _apart_from_ray(place) as self.caveats:
                self._launcher, self._place = Launcher(place.keep), place
        return self._launcher

    def give_up(self, error: BreakevenError) -> bytes:
        """Return a refusal as JSON; close the launcher, which may be the cause."""
        self._close()
        is_refused = isinstance(error, _RefusedError)
        message = error.message if is_refused else f"cannot run it: {error.message}"
        return msgspec.json.encode(NodeRefusal(message=message, hint=error.hint or ""))

    def _close(self) -> None:
        if self._launcher is not None:
            self._launcher.close()
            self._launcher = None


_WARM = _WarmLauncher()


def _check_target(task: NodeTask) -> None:
    """Check that the target's file equals the one on the sending machine."""
    target = task.request.target
    if target.kind is TargetKind.MODULE:
        return
    digest = file_digest(target.path)
    if digest is None:
        raise _RefusedError(f"has no file {target.path}", hint=SHARED_FILES)
    if digest != task.target_sha256:
        raise _RefusedError(f"has another version of {target.path}", hint=SHARED_FILES)


@contextmanager
def _apart_from_ray(place: NodePlace) -> Iterator[tuple[Caveat, ...]]:
    """Undo Ray's changes to its workers inside; yield caveats on those that remain."""
    if not Path(place.folder).is_dir():
        raise _RefusedError(
            f"has no folder {place.folder}, where the script runs", hint=SHARED_FILES
        )
    folder, environment = Path.cwd(), dict(os.environ)
    os.chdir(place.folder)
    for name in _settings():
        del os.environ[name]
    os.environ.update(place.settings)
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    is_normal = _set_niceness(os.getpriority(os.PRIO_PROCESS, os.getppid()))
    try:
        yield () if is_normal else (_LOW_PRIORITY,)
    finally:
        _set_niceness(niceness)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)


def _settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(TORCH_SETTINGS)}


def _set_niceness(niceness: int) -> bool:
    """Set the niceness of new processes; return whether that was allowed."""
    if os.getpriority(os.PRIO_PROCESS, 0) == niceness:
        return True
    try:
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
    except OSError:
        return False
    return True
