"""A Ray cluster as the engine needs it: its nodes, and tasks that are pinned to them."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from breakeven.errors import BreakevenError

_CONNECT_LIMIT_S = 5.0
# Ray ends a task within milliseconds, and its worker a second later.
_CANCEL_LIMIT_S = 5.0
# Ray prints what it logs, and a dead node's last words, on stdout; its makers hear of each use.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_DEDUP_LOGS_SKIP_REGEX": "^",
}
# Resources that every node has, or that Ray makes itself.
_OWN_RESOURCES = re.compile(r"CPU|GPU|memory|object_store_memory|node:.*|bundle_.*|.*_group_.*")


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """One node that is alive.

    Args:
        node_id: Its id, never used for another one.
        name: Host name and address, for a person.
        address: Address of its machine.
        resources: What tasks can ask for, by name.
    """

    node_id: str
    name: str
    address: str
    resources: Mapping[str, float]

    @property
    def has_gpu(self) -> bool:
        """Return whether Ray knows of a GPU there."""
        return self.resources.get("GPU", 0.0) > 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """How a task ended.

    Args:
        data: What it returned; None where it was lost.
        has_begun: Whether a lost one may have run.
        is_node_dead: Whether its node is gone.
    """

    data: bytes | None
    has_begun: bool = True
    is_node_dead: bool = False


class RayConnection:
    """The cluster, joined when it is first needed.

    Args:
        address: As Ray takes it; None for ``RAY_ADDRESS`` or the cluster of this machine.
        machine: Custom resource that nodes must have; empty for all.

    Raises:
        BreakevenError: Ray is not installed.
    """

    def __init__(self, address: str | None, machine: str) -> None:
        if importlib.util.find_spec("ray") is None:
            raise BreakevenError(
                "measuring on a Ray cluster needs Ray, which is not installed",
                hint="python -m pip install 'breakeven[ray]'",
            )
        self._address = address or os.environ.get("RAY_ADDRESS") or "auto"
        self._machine = machine
        self._ray: Any = None
        self._task: Any = None
        self._is_ours = False

    def close(self) -> None:
        """Leave the cluster, where this connection joined it."""
        if self._is_ours and self._ray is not None:
            self._ray.shutdown()
        self._ray = self._task = None

    def nodes(self) -> list[RayNode]:
        """Return the nodes that are alive and take tasks, of the kind asked for.

        Raises:
            BreakevenError: No node is of that kind.
        """
        alive = [_node(entry) for entry in self._joined().nodes() if entry["Alive"]]
        nodes = [node for node in alive if node.resources.get("CPU", 0.0) > 0.0]
        if not self._machine:
            return nodes
        names = {name for node in nodes for name in node.resources}
        kinds = sorted(name for name in names if not _OWN_RESOURCES.fullmatch(name))
        if self._machine not in kinds:
            raise BreakevenError(
                f"no node of the Ray cluster is of the kind {self._machine!r}"
                + (f"; there are: {', '.join(kinds)}" if kinds else ""),
                hint=f"start one with: ray start --resources '{{\"{self._machine}\": 1}}'",
            )
        return [node for node in nodes if self._machine in node.resources]

    def start(self, part: str, data: bytes, node: RayNode, *, takes_all: bool) -> Any:
        """Start a function of ``ray_node`` as a task on a node, and return its reference.

        Args:
            part: Name of the function.
            data: Its argument.
            node: Where it runs, and nowhere else.
            takes_all: Wait until the node is free, and keep other tasks off it meanwhile.
        """
        ray = self._joined()
        strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
        options: dict[str, Any] = {"num_cpus": 0}
        if takes_all:
            options = {
                "num_cpus": node.resources["CPU"],
                "num_gpus": node.resources.get("GPU", 0.0),
                "resources": (
                    {self._machine: node.resources[self._machine]} if self._machine else {}
                ),
            }
        if self._task is None:
            self._task = ray.remote(_carried_function())
        task = self._task.options(
            name=f"breakeven {part}",
            max_retries=0,  # Ray would try the same node again
            scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(node.node_id, soft=False),
            **options,
        )
        return task.remote(part, own_version(), data)

    def wait(self, references: Sequence[Any], limit_s: float) -> Sequence[Any]:
        """Return those tasks that have ended, as soon as there is one or the time is over."""
        done, _ = self._joined().wait(references, num_returns=len(references), timeout=0)
        if done or not references:
            return done
        return self._joined().wait(references, num_returns=1, timeout=limit_s)[0]

    def take(self, reference: Any) -> TaskOutcome:
        """Return how a task ended that has ended."""
        ray = self._joined()
        errors = ray.exceptions
        try:
            return TaskOutcome(data=ray.get(reference))
        except errors.TaskUnschedulableError:
            return TaskOutcome(data=None, has_begun=False, is_node_dead=True)
        except errors.NodeDiedError:
            return TaskOutcome(data=None, is_node_dead=True)
        except (errors.WorkerCrashedError, errors.OutOfMemoryError, errors.ObjectLostError):
            return TaskOutcome(data=None)
        except errors.RayError as error:
            raise BreakevenError(f"Ray failed: {str(error).strip().splitlines()[-1]}") from error

    def cancel(self, references: Sequence[Any]) -> None:
        """End tasks and all their processes, and wait until they have ended."""
        if not references or self._ray is None or not self._ray.is_initialized():
            return
        for reference in references:
            # By force: an interrupt would wait for the script's next step.
            self._ray.cancel(reference, force=True)
        self._ray.wait(references, num_returns=len(references), timeout=_CANCEL_LIMIT_S)

    def _joined(self) -> Any:
        if self._ray is None:
            with _quiet():
                self._ray, self._is_ours = _join(self._address)
        return self._ray


def own_version() -> str:
    """Return the version of breakeven; empty where it runs from a folder, not installed."""
    try:
        return version("breakeven")
    except PackageNotFoundError:
        return ""


def _join(address: str) -> tuple[Any, bool]:
    """Return Ray, and whether it was joined to the cluster just now."""
    ray: Any = importlib.import_module("ray")
    if ray.is_initialized():
        joined = ray.get_runtime_context().gcs_address
        if address not in ("auto", joined):
            raise BreakevenError(
                f"this process already belongs to the Ray cluster at {joined}, not {address}",
                hint="call ray.shutdown() first, or leave the address out",
            )
        return ray, False
    _check_reachable(address)
    try:
        ray.init(
            address=address, log_to_driver=False, logging_level="CRITICAL", configure_logging=True
        )
    # It raises whatever its layers raise; each of them says what is wrong.
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise BreakevenError(
            f"the Ray cluster could not be joined: {reason}",
            hint="start one with `ray start --head`, run this on a machine that belongs to it, "
            "or name the address that `ray start` printed",
        ) from error
    return ray, True


def _check_reachable(address: str) -> None:
    """Ask the port: where nothing listens there, Ray itself would try for minutes."""
    match = re.fullmatch(r"\[?([^/]+?)\]?:(\d{1,5})", address)
    if match is None:
        return
    try:
        socket.create_connection((match[1], int(match[2])), timeout=_CONNECT_LIMIT_S).close()
    except (OSError, OverflowError) as error:
        raise BreakevenError(
            f"no Ray cluster answers at {address}: {error}",
            hint="name the address that `ray start --head` printed",
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Let Ray start without a word, and leave signals and environment as they are."""
    before = {name: os.environ.get(name) for name in _QUIET}
    os.environ.update(_QUIET)
    is_main = threading.current_thread() is threading.main_thread()
    on_terminate = signal.getsignal(signal.SIGTERM) if is_main else None
    try:
        yield
    finally:
        if on_terminate is not None:
            signal.signal(signal.SIGTERM, on_terminate)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _node(entry: Mapping[str, Any]) -> RayNode:
    host, address = entry["NodeManagerHostname"], entry["NodeManagerAddress"]
    return RayNode(
        node_id=entry["NodeID"],
        name=host if host == address else f"{host} ({address})",
        address=address,
        resources=dict(entry["Resources"]),
    )


def _carried_function() -> Callable[[str, str, bytes], bytes]:
    """Return what Ray carries to the nodes: its own code, since breakeven may be missing there.

    A function inside of a function goes as code; one of a module would go as a name.
    """

    def run_on_node(part: str, own_version: str, data: bytes) -> bytes:
        import importlib
        import importlib.metadata
        import json

        try:
            node = importlib.import_module("breakeven.studies.ray_node")
        except ImportError as error:
            problem = f"has no working breakeven: {error}"
        else:
            try:
                there = importlib.metadata.version("breakeven")
            except importlib.metadata.PackageNotFoundError:
                there = ""
            if there == own_version:
                return getattr(node, part)(data)
            problem = f"has breakeven {there or 'from a folder'}, and here is {own_version}"
        hint = "install the same version of breakeven on every node"
        return json.dumps({"type": "refusal", "message": problem, "hint": hint}).encode()

    return run_on_node
