"""Measure on the machines of a Ray cluster, one run at a time on each."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

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
from breakeven.store import MachineKey
from breakeven.studies.engine import EngineRun
from breakeven.studies.ray_connection import RayConnection, RayNode
from breakeven.studies.ray_node import (
    SHARED_FILES,
    NodeAnswer,
    NodeMachine,
    NodePlace,
    NodeRefusal,
    NodeRun,
    NodeTask,
)

# How often dead and new nodes are looked for.
_POLL_S = 1.0
# Importing torch for the first time on a machine, and a worker's start, take up to this long.
_DESCRIBE_LIMIT_S = 180.0
# A node that has not answered so long after the time limit of a run has not begun with it.
_PATIENCE_S = 60.0
# A run that took down so many workers or machines is what ends them.
_MAX_LOSSES = 3
_DECODER = msgspec.json.Decoder(NodeAnswer)


@dataclass(frozen=True, slots=True)
class _Job:
    """A run that was handed to a node."""

    request: RunRequest
    node: RayNode
    started_s: float


class RayEngine:
    """Makes each run as a task of its own on a Ray cluster, which must be running.

    A task takes all of a node, and waits for other breakeven processes on its machine. Where a
    node dies, its run is made on another one. Use as a context manager, or call ``close``.

    Args:
        address: The cluster, such as ``10.0.0.1:6379``; None for ``RAY_ADDRESS``, or else the one
            that this machine belongs to.
        machine: Custom resource of the nodes that measure; empty for all nodes.
        progress: Progress callback, of machines that measure or are waited for.
        keep: What of the script's side effects on the nodes is to be real; by default nothing.

    Raises:
        BreakevenError: Ray is not installed.
    """

    def __init__(
        self,
        address: str | None = None,
        machine: str = "",
        progress: Progress | None = None,
        keep: Keep = KEEP_NOTHING,
    ) -> None:
        self._connection = RayConnection(address, machine)
        self._progress = progress or SilentProgress()
        self._keep = keep
        # Every node seen so far; an id is never used again.
        self._machines: dict[str, MachineKey] = {}
        self._dead: set[str] = set()
        self._shown = ""

    def __enter__(self) -> RayEngine:
        """Join the cluster, so that one without a node of the kind is refused before any work."""
        try:
            self._connection.nodes()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the cluster, where it was this engine that joined it."""
        self._connection.close()

    def machines(self) -> Sequence[MachineKey]:
        """Return the machines of the nodes, each once.

        Raises:
            BreakevenError: There is no such node, or one of them cannot measure, or they differ.
        """
        return tuple(dict.fromkeys(self._machines[node.node_id] for node in self._nodes()))

    def measure(self, requests: Sequence[RunRequest]) -> Iterator[EngineRun]:
        """Make each run once, and yield them in the order in which they end.

        Raises:
            BreakevenError: No node is left, or a node cannot make a run at all.
        """
        self.machines()
        waiting = deque(requests)
        jobs: dict[Any, _Job] = {}
        losses: Counter[RunRequest] = Counter()
        refusal: BreakevenError | None = None
        try:
            while waiting or jobs:
                self._hand_out(waiting, jobs)
                for reference in self._connection.wait(list(jobs), _POLL_S):
                    job = jobs.pop(reference)
                    try:
                        run = self._take(reference, job, losses)
                    except BreakevenError as error:
                        refusal = error  # the answers of other nodes that are here come first
                        continue
                    if run is None:
                        waiting.appendleft(job.request)
                    else:
                        yield run
                if refusal is not None:
                    raise refusal
                self._show(jobs)
        finally:
            self._connection.cancel(list(jobs))

    def _hand_out(self, waiting: deque[RunRequest], jobs: dict[Any, _Job]) -> None:
        """Give a run to each node that is free."""
        if not waiting:
            return
        nodes = self._nodes()
        busy = {job.node.address for job in jobs.values()}
        for node in nodes:
            # Nodes at one address share a machine: only one of them measures at a time.
            if node.address in busy:
                continue
            request = next((each for each in waiting if _suits(node, each)), None)
            if request is None:
                continue
            waiting.remove(request)
            busy.add(node.address)
            data = msgspec.json.encode(_task(request, self._keep))
            reference = self._connection.start("measure", data, node, takes_all=True)
            jobs[reference] = _Job(request, node, monotonic())
        for request in waiting:
            if not any(_suits(node, request) for node in nodes):
                raise BreakevenError(
                    "a run on a GPU is asked for, and no node that measures has one",
                    hint="start a node with a GPU, or sweep without it",
                )

    def _take(self, reference: Any, job: _Job, losses: Counter[RunRequest]) -> EngineRun | None:
        """Return what a job came to, or None where it is to be made again."""
        outcome = self._connection.take(reference)
        if outcome.is_node_dead:
            self._dead.add(job.node.node_id)
        if outcome.data is None:
            losses[job.request] += outcome.has_begun
            if losses[job.request] < _MAX_LOSSES:
                return None
            answer, output = RunFailure(kind=FailureKind.KILLED, message="SIGKILL"), ""
        else:
            run = _decode(outcome.data, job.node)
            assert isinstance(run, NodeRun)
            answer, output = run.answer, run.output
            _check_sources(answer, job.node)
        machine = self._machines[job.node.node_id]
        return EngineRun(request=job.request, answer=answer, output=output, machine=machine)

    def _nodes(self) -> list[RayNode]:
        """Return the nodes that can measure now, those that are new asked what they are.

        Raises:
            BreakevenError: There is none, or their times do not make one curve.
        """
        nodes = self._connection.nodes()
        self._describe([node for node in nodes if node.node_id not in self._machines])
        alive = [node for node in nodes if node.node_id not in self._dead]
        if not alive:
            raise BreakevenError(
                "no node of the Ray cluster is there to measure on",
                hint="start one that has processors for tasks, and repeat the command: what was "
                "measured is kept",
            )
        _check_alike({self._machines[node.node_id]: node for node in alive})
        return alive

    def _describe(self, nodes: Sequence[RayNode]) -> None:
        place = msgspec.json.encode(NodePlace.here(self._keep))
        started = {
            self._connection.start("describe", place, node, takes_all=False): node
            for node in nodes
            if node.node_id not in self._dead
        }
        if started:
            names = ", ".join(node.name for node in started.values())
            self._progress.detail(f"starting torch on {names}")
        deadline_s = monotonic() + _DESCRIBE_LIMIT_S
        while started:
            for reference in self._connection.wait(list(started), _POLL_S):
                node = started.pop(reference)
                outcome = self._connection.take(reference)
                if outcome.data is None:
                    self._dead.add(node.node_id)
                    continue
                described = _decode(outcome.data, node)
                assert isinstance(described, NodeMachine)
                self._machines[node.node_id] = described.machine
            if started and monotonic() > deadline_s:
                self._connection.cancel(list(started))
                names = ", ".join(node.name for node in started.values())
                raise BreakevenError(
                    f"no answer from {names} within {_DESCRIBE_LIMIT_S:g} s",
                    hint="look at `ray status`, or take the node out of the cluster",
                )

    def _show(self, jobs: dict[Any, _Job]) -> None:
        now_s = monotonic()
        late = [
            job.node.name
            for job in jobs.values()
            if now_s - job.started_s > job.request.time_limit_s + _PATIENCE_S
        ]
        if late:
            text = f"waiting for {', '.join(late)}, which other work seems to keep busy"
        else:
            text = "on " + ", ".join(job.node.name for job in jobs.values())
        if jobs and text != self._shown:
            self._progress.detail(text)
            self._shown = text


def _check_alike(found: Mapping[MachineKey, RayNode]) -> None:
    if len({(key.processor, key.num_processors, key.torch_version) for key in found}) <= 1:
        return
    listed = "; ".join(
        f"{node.name}: {key.processor}, {key.num_processors} processors, torch {key.torch_version}"
        for key, node in found.items()
    )
    raise BreakevenError(
        f"the Ray nodes that would measure differ: {listed}",
        hint="their times do not make one curve: give the nodes of one kind a resource, as in "
        "`ray start --resources '{\"KIND\": 1}'`, and name it with --machine KIND",
    )


def _suits(node: RayNode, request: RunRequest) -> bool:
    return node.has_gpu or not request.on_gpu


def _task(request: RunRequest, keep: Keep) -> NodeTask:
    target = request.target
    digest = None if target.kind is TargetKind.MODULE else file_digest(target.path)
    return NodeTask(request=request, place=NodePlace.here(keep), target_sha256=digest or "")


def _decode(data: bytes, node: RayNode) -> NodeAnswer:
    answer = _DECODER.decode(data)
    if isinstance(answer, NodeRefusal):
        raise BreakevenError(f"the Ray node {node.name} {answer.message}", hint=answer.hint or None)
    return answer


def _check_sources(answer: PlainRun | RunFailure, node: RayNode) -> None:
    """Refuse a measurement of files that are not those of this machine."""
    if isinstance(answer, RunFailure):
        return
    for source in answer.sources:
        if file_digest(source.path) != source.sha256:
            raise BreakevenError(
                f"{source.path} is not the same on the Ray node {node.name} as here",
                hint=SHARED_FILES,
            )
