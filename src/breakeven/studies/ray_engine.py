"""An engine that measures on the machines of a Ray cluster, one run at a time on each."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import signal
import socket
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any, NamedTuple

import msgspec

from breakeven.capture import (
    KEEP_NOTHING,
    FailureKind,
    Keep,
    PlainRun,
    RunFailure,
    RunRequest,
    TargetKind,
    file_digest,
)
from breakeven.errors import BreakevenError
from breakeven.progress import Progress, SilentProgress
from breakeven.store import MachineKey, installed_version
from breakeven.studies.engine import EngineRun
from breakeven.studies.ray_node import (
    SHARED_FILES,
    NodeAnswer,
    NodeMachine,
    NodePlace,
    NodeRefusal,
    NodeRun,
    NodeTask,
    run_on_node,
)

_CONNECT_LIMIT_S = 5.0
# Ray ends a task within milliseconds, and its worker one second later.
_CANCEL_LIMIT_S = 5.0
# Interval between checks for dead and new nodes.
_POLL_S = 1.0
# Limit for the first import of torch on a machine and the start of a worker.
_DESCRIBE_LIMIT_S = 180.0
# After this many lost workers or machines, the run itself is to blame.
_MAX_LOSSES = 3
# Ray prints its logs, and a dead node's last output, to stdout, and reports usage to its makers.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_DEDUP_LOGS_SKIP_REGEX": "^",
}
_DECODER = msgspec.json.Decoder(NodeAnswer)


class _Node(NamedTuple):
    """A node that is alive: its unique id, its name, its address and its resources."""

    node_id: str
    name: str
    address: str
    resources: Mapping[str, float]


# A run assigned to a node.
_Job = tuple[RunRequest, _Node]


class RayEngine:
    """Makes each run as a separate task on a running Ray cluster.

    A task occupies all of a node, and waits for other breakeven processes on its machine. If a node
    dies, then its run is made on another one. Use as a context manager, or call ``close``.

    Args:
        address: The cluster, such as ``10.0.0.1:6379``; None for ``RAY_ADDRESS``, or else the
            cluster of this machine.
        machine: Custom resource of the nodes that measure; empty for all nodes.
        progress: Progress callback, for machines that measure or are waited for.
        keep: Side effects of the script on the nodes that are real; by default none.

    Raises:
        BreakevenError: If Ray is not installed.
    """

    def __init__(
        self,
        address: str | None = None,
        machine: str = "",
        progress: Progress | None = None,
        keep: Keep = KEEP_NOTHING,
    ) -> None:
        if importlib.util.find_spec("ray") is None:
            raise BreakevenError(
                "measuring on a Ray cluster needs Ray, which is not installed",
                hint="python -m pip install 'breakeven[ray]'",
            )
        self._address = address or os.environ.get("RAY_ADDRESS") or "auto"
        self._machine = machine
        self._progress = progress or SilentProgress()
        self._keep = keep
        # Ray, once this engine has joined the cluster, and its remote function.
        self._ray: Any = None
        self._task: Any = None
        self._is_ours = False
        # Every node seen so far.
        self._machines: dict[str, MachineKey] = {}
        self._dead: set[str] = set()
        self._shown = ""

    def __enter__(self) -> RayEngine:
        """Join the cluster and fail at once if it has no node of the kind."""
        try:
            self._of_kind()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the cluster, if this engine joined it."""
        if self._is_ours and self._ray is not None:
            self._ray.shutdown()
        self._ray = self._task = None

    def machines(self) -> Sequence[MachineKey]:
        """Return the machines of the nodes, without repeats.

        Raises:
            BreakevenError: If there is no such node, or one cannot measure, or they differ.
        """
        return tuple(dict.fromkeys(self._machines[node.node_id] for node in self._nodes()))

    def measure(self, requests: Sequence[RunRequest]) -> Iterator[EngineRun]:
        """Make each run once, and yield the runs in the order in which they end.

        Raises:
            BreakevenError: If no node is left, or a node cannot make any run.
        """
        self.machines()
        waiting = deque(requests)
        jobs: dict[Any, _Job] = {}
        losses: Counter[RunRequest] = Counter()
        refusal: BreakevenError | None = None
        try:
            while waiting or jobs:
                self._hand_out(waiting, jobs)
                for reference in self._wait(list(jobs)):
                    request, node = jobs.pop(reference)
                    try:
                        answer = self._take(reference, node)
                    except BreakevenError as error:
                        refusal = error  # first yield the answers of other nodes
                        continue
                    if answer is None:
                        losses[request] += 1
                        if losses[request] < _MAX_LOSSES:
                            waiting.appendleft(request)
                            continue
                        failure = RunFailure(kind=FailureKind.KILLED, message="SIGKILL")
                        answer = NodeRun(answer=failure, output="")
                    assert isinstance(answer, NodeRun)
                    machine = self._machines[node.node_id]
                    yield EngineRun(
                        request=request,
                        answer=answer.answer,
                        output=answer.output,
                        machine=machine,
                    )
                if refusal is not None:
                    raise refusal
                self._show(node.name for _, node in jobs.values())
        finally:
            self._cancel(list(jobs))

    def _hand_out(self, waiting: deque[RunRequest], jobs: dict[Any, _Job]) -> None:
        """Assign a run to each free node."""
        if not waiting:
            return
        busy = {node.address for _, node in jobs.values()}
        for node in self._nodes():
            # Nodes with one address share a machine, so only one of them measures at a time.
            if node.address in busy or not waiting:
                continue
            request = waiting.popleft()
            busy.add(node.address)
            target = request.target
            digest = None if target.kind is TargetKind.MODULE else file_digest(target.path)
            task = NodeTask(
                request=request, place=NodePlace.here(self._keep), target_sha256=digest or ""
            )
            reference = self._start("measure", task, node)
            jobs[reference] = request, node

    def _nodes(self) -> list[_Node]:
        """Return the nodes that can measure now, after asking new ones to describe themselves.

        Raises:
            BreakevenError: If there is none, or if they differ, so that their times do not make one
                curve.
        """
        nodes = self._of_kind()
        place = NodePlace.here(self._keep)
        started = {
            self._start("describe", place, node): node
            for node in nodes
            if node.node_id not in self._dead and node.node_id not in self._machines
        }
        if started:
            names = ", ".join(node.name for node in started.values())
            self._progress.detail(f"starting torch on {names}")
        deadline_s = monotonic() + _DESCRIBE_LIMIT_S
        while started:
            for reference in self._wait(list(started)):
                node = started.pop(reference)
                described = self._take(reference, node)
                if described is None:
                    self._dead.add(node.node_id)
                    continue
                assert isinstance(described, NodeMachine)
                self._machines[node.node_id] = described.machine
            if started and monotonic() > deadline_s:
                self._cancel(list(started))
                names = ", ".join(node.name for node in started.values())
                raise BreakevenError(
                    f"no answer from {names} within {_DESCRIBE_LIMIT_S:g} s",
                    hint="look at `ray status`, or take the node out of the cluster",
                )
        alive = [node for node in nodes if node.node_id not in self._dead]
        if not alive:
            raise BreakevenError(
                "no node of the Ray cluster is there to measure on",
                hint="start one that has processors for tasks, and repeat the command: "
                "measurements are kept",
            )
        found = {self._machines[node.node_id]: node for node in alive}
        if len({(key.processor, key.num_processors, key.torch_version) for key in found}) > 1:
            listed = "; ".join(
                f"{node.name}: {key.processor}, {key.num_processors} processors, torch "
                f"{key.torch_version}"
                for key, node in found.items()
            )
            raise BreakevenError(
                f"the Ray nodes that would measure differ: {listed}",
                hint="their times do not make one curve: give the nodes of one kind a resource, as "
                "in `ray start --resources '{\"KIND\": 1}'`, and name it with --machine KIND",
            )
        return alive

    def _of_kind(self) -> list[_Node]:
        """Return the nodes of the requested kind that are alive and take tasks.

        Raises:
            BreakevenError: If no node is of that kind, or the cluster cannot be joined.
        """
        nodes: list[_Node] = []
        for entry in self._joined().nodes():
            host, address = entry["NodeManagerHostname"], entry["NodeManagerAddress"]
            if entry["Alive"] and entry["Resources"].get("CPU", 0.0) > 0.0:
                name = host if host == address else f"{host} ({address})"
                nodes.append(_Node(entry["NodeID"], name, address, dict(entry["Resources"])))
        if not self._machine:
            return nodes
        nodes = [node for node in nodes if self._machine in node.resources]
        if not nodes:
            raise BreakevenError(
                f"no node of the Ray cluster is of the kind {self._machine!r}",
                hint=f"start one with: ray start --resources '{{\"{self._machine}\": 1}}'",
            )
        return nodes

    def _start(self, part: str, argument: NodePlace | NodeTask, node: _Node) -> Any:
        """Start a function of ``ray_node`` as a task on a node, and return its reference.

        A measuring task waits until the node is free, and keeps other tasks off it.
        """
        ray = self._joined()
        strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
        options: dict[str, Any] = {"num_cpus": 0}
        if part == "measure":
            kind = {self._machine: node.resources[self._machine]} if self._machine else {}
            options = {
                "num_cpus": node.resources["CPU"],
                "num_gpus": node.resources.get("GPU", 0.0),
                "resources": kind,
            }
        if self._task is None:
            self._task = ray.remote(run_on_node)
        task = self._task.options(
            name=f"breakeven {part}",
            max_retries=0,  # Ray would retry on the same node
            scheduling_strategy=strategies.NodeAffinitySchedulingStrategy(node.node_id, soft=False),
            **options,
        )
        return task.remote(part, installed_version("breakeven"), msgspec.json.encode(argument))

    def _wait(self, references: Sequence[Any]) -> Sequence[Any]:
        """Return finished tasks, as soon as there is one or the poll interval ends."""
        if not references:
            return ()
        wait = self._joined().wait
        done, _ = wait(references, num_returns=len(references), timeout=0)
        return done or wait(references, num_returns=1, timeout=_POLL_S)[0]

    def _take(self, reference: Any, node: _Node) -> NodeMachine | NodeRun | None:
        """Return the result of a finished task; None if the task or its node was lost.

        Raises:
            BreakevenError: If the node refused it, or measured files that differ from this
                machine's.
        """
        errors = self._joined().exceptions
        try:
            answer = _DECODER.decode(self._joined().get(reference))
        except (errors.TaskUnschedulableError, errors.NodeDiedError):
            self._dead.add(node.node_id)
            return None
        except (errors.WorkerCrashedError, errors.OutOfMemoryError, errors.ObjectLostError):
            return None
        except errors.RayError as error:
            raise BreakevenError(f"Ray failed: {str(error).strip().splitlines()[-1]}") from error
        if isinstance(answer, NodeRefusal):
            raise BreakevenError(
                f"the Ray node {node.name} {answer.message}", hint=answer.hint or None
            )
        if isinstance(answer, NodeRun) and isinstance(answer.answer, PlainRun):
            for source in answer.answer.sources:
                if file_digest(source.path) != source.sha256:
                    raise BreakevenError(
                        f"{source.path} is not the same on the Ray node {node.name} as here",
                        hint=SHARED_FILES,
                    )
        return answer

    def _cancel(self, references: Sequence[Any]) -> None:
        """End tasks and all their processes, and wait for their end."""
        if not references or self._ray is None or not self._ray.is_initialized():
            return
        for reference in references:
            # Use force: an interrupt would wait for the script's next step.
            self._ray.cancel(reference, force=True)
        self._ray.wait(references, num_returns=len(references), timeout=_CANCEL_LIMIT_S)

    def _show(self, names: Iterable[str]) -> None:
        text = "on " + ", ".join(names)
        if text not in ("on ", self._shown):
            self._progress.detail(text)
            self._shown = text

    def _joined(self) -> Any:
        """Return Ray, after joining the cluster on the first call."""
        if self._ray is not None:
            return self._ray
        with _quiet():
            ray: Any = importlib.import_module("ray")
            if ray.is_initialized():
                joined = ray.get_runtime_context().gcs_address
                if self._address not in ("auto", joined):
                    raise BreakevenError(
                        f"this process already belongs to the Ray cluster at {joined}, not "
                        f"{self._address}",
                        hint="call ray.shutdown() first, or leave the address out",
                    )
                self._ray = ray
                return ray
            _check_reachable(self._address)
            try:
                ray.init(
                    address=self._address,
                    log_to_driver=False,
                    logging_level="CRITICAL",
                    configure_logging=True,
                )
            # Ray's layers raise various exceptions; each message explains the problem.
            except Exception as error:
                reason = (str(error).strip() or repr(error)).splitlines()[0]
                raise BreakevenError(
                    f"the Ray cluster could not be joined: {reason}",
                    hint="start one with `ray start --head`, run this on a machine that belongs to "
                    "it, or name the address that `ray start` printed",
                ) from error
        self._ray, self._is_ours = ray, True
        return ray


def _check_reachable(address: str) -> None:
    """Try the port first: if nothing listens there, Ray itself retries for minutes."""
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
    """Start Ray without output, and restore signals and environment."""
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
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
