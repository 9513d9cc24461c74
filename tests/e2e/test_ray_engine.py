"""Runs on a Ray cluster of two nodes, which share this machine."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from script_runs import request_of as request_of_script

from breakeven.capture import FailureKind, Keep, PlainRun, RunFailure, RunRequest
from breakeven.errors import BreakevenError
from breakeven.store import machine_lock
from breakeven.studies import EngineRun, RayEngine, parse_axis, ray_engine, sweep_target
from breakeven.timing import Source
from breakeven.verdict import DeviceKind
from factories.processes import is_running, wait_until

pytest.importorskip("ray", reason="needs Ray: pip install 'breakeven[ray]'")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # Ray warns about itself
]

# Every step leaves a stamp: which point, which process of Ray's, at what priority, when.
SCRIPT = """
    import os, sys, time
    import torch

    def stamp():
        raylet = os.environ.get("RAY_RAYLET_PID", 0)
        words = [sys.argv[1], raylet, os.nice(0), os.getpid(), time.time_ns()]
        with open("stamps", "a") as file:
            file.write(" ".join(map(str, words)) + "\\n")

    stamp()
    print("point", sys.argv[1])
    if sys.argv[1] == "broken":
        raise ValueError("no such point")
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10_000):
        optimizer.zero_grad()
        model(torch.ones(8, 4)).sum().backward()
        optimizer.step()
        time.sleep(float(sys.argv[2]))
        stamp()
"""
# Measures points on the nodes of a kind, and prints each as soon as it is done.
DRIVER = """
    import sys
    from breakeven.capture import Keep, RunRequest, find_target
    from breakeven.errors import BreakevenError
    from breakeven.studies import RayEngine

    address, kind, *points = sys.argv[1:]
    targets = [
        find_target("train.py", (point, "0.5" if point == "b" else "0.01")) for point in points
    ]
    requests = [
        RunRequest(target=target, is_traced=False, time_limit_s=30.0, budget_s=0.2)
        for target in targets
    ]
    try:
        with RayEngine(address, machine=kind, keep=Keep(writes=True)) as engine:
            for run in engine.measure(requests):
                point = run.request.target.arguments[0]
                print(f"{point}:{type(run.answer).__name__}", flush=True)
    except BreakevenError as error:
        sys.exit(error.message)
"""
QUICK, SLOW = "0.01", "0.5"
# Scripts write where and when they run.
KEPT = Keep(writes=True)


class Stamp(NamedTuple):
    point: str
    raylet: int
    niceness: int
    process: int
    time_ns: int


class Nodes:
    """The cluster; only its second node, and one that a test adds, are of the kind KIND."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.address: str = cluster.address
        self.pinned = self.add("KIND")

    def add(self, kind: str) -> Any:
        # Fewer processors than this machine has, which Ray makes known to the libraries.
        return self.cluster.add_node(
            num_cpus=1, resources={kind: 1}, object_store_memory=80 * 2**20
        )


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        # Out of the way of whatever else is measured on this machine.
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 1,
                "object_store_memory": 80 * 2**20,
                "include_dashboard": False,
            },
        )
        try:
            yield Nodes(cluster)
        finally:
            cluster.shutdown()


@pytest.fixture(scope="module")
def engine(nodes: Nodes) -> Iterator[RayEngine]:
    with RayEngine(nodes.address, keep=KEPT) as joined:
        yield joined


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, in which the script is and leaves its stamps."""
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def request_of(point: str, pause: str = QUICK, budget_s: float = 0.2) -> RunRequest:
    return request_of_script(Path("train.py").resolve(), point, pause, budget_s=budget_s)


def stamps(folder: Path) -> list[Stamp]:
    path = folder / "stamps"
    lines = path.read_text().splitlines() if path.exists() else []
    return [Stamp(point, *map(int, rest)) for point, *rest in map(str.split, lines)]


def point_of(run: EngineRun) -> str:
    return run.request.target.arguments[0]


def are_ended(taken: Sequence[Stamp]) -> bool:
    """Return whether no process that left a stamp is there any more."""
    return not any(is_running(stamp.process) for stamp in taken)


def raylet_of(node: Any) -> int:
    return node.all_processes["raylet"][0].process.pid


@pytest.mark.full
def test_each_point_is_measured_alone_and_as_without_ray(
    engine: RayEngine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    count = [sys.executable, "-c", "import torch; print(torch.get_num_threads())"]
    num_threads = int(subprocess.run(count, check=True, capture_output=True).stdout)
    points = ["a", "broken", "c"]

    runs = list(engine.measure([request_of(point) for point in points]))

    assert sorted(map(point_of, runs)) == points
    answers = {point_of(run): run.answer for run in runs}
    broken = answers.pop("broken")
    assert isinstance(broken, RunFailure)
    assert broken.kind is FailureKind.EXCEPTION
    for answer in answers.values():
        assert isinstance(answer, PlainRun)
        assert answer.measurement.median_ns > 10_000_000
        assert answer.num_threads == num_threads
        assert "low-priority" not in {caveat.code for caveat in answer.caveats}
    assert all(f"point {point_of(run)}" in run.output for run in runs)
    assert {run.machine for run in runs} == set(engine.machines())

    taken = stamps(folder)
    assert {stamp.niceness for stamp in taken} == {os.nice(0)}
    spans = {point: [stamp.time_ns for stamp in taken if stamp.point == point] for point in points}
    in_order = sorted(points, key=lambda point: spans[point][0])
    for earlier, later in itertools.pairwise(in_order):
        assert max(spans[earlier]) < min(spans[later])
    assert [point_of(run) for run in runs] == in_order
    assert are_ended(taken)


def test_an_unknown_kind_is_refused_at_once(nodes: Nodes, folder: Path) -> None:
    started_s = time.monotonic()
    with (
        pytest.raises(BreakevenError, match="no node of the Ray cluster is of the kind"),
        RayEngine(nodes.address, machine="{}; rm"),
    ):
        raise AssertionError("it is refused before any work")
    assert time.monotonic() - started_s < 25.0
    assert stamps(folder) == []


@pytest.mark.full
def test_a_run_waits_for_other_measurements_on_the_machine(engine: RayEngine, folder: Path) -> None:
    runs: list[EngineRun] = []
    held = machine_lock()
    with held:
        iterator = engine.measure([request_of("a")])
        thread = threading.Thread(target=lambda: runs.extend(iterator))
        thread.start()
        time.sleep(4.0)
        assert stamps(folder) == []
        released_ns = time.time_ns()
    thread.join(timeout=60.0)
    assert [point_of(run) for run in runs] == ["a"]
    assert min(stamp.time_ns for stamp in stamps(folder)) > released_ns


@pytest.mark.full
def test_whoever_stops_iterating_ends_what_runs(engine: RayEngine, folder: Path) -> None:
    iterator = engine.measure([request_of("a"), request_of("b", SLOW, 20.0)])
    assert point_of(next(iterator)) == "a"

    def interrupt() -> None:
        wait_until(lambda: any(stamp.point == "b" for stamp in stamps(folder)))
        os.kill(os.getpid(), signal.SIGINT)

    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    interrupter.join()
    wait_until(lambda: are_ended(stamps(folder)), limit_s=3.0)
    # The node is free again.
    assert [point_of(run) for run in engine.measure([request_of("c")])] == ["c"]


def test_a_sweep_traces_here_and_measures_there(
    nodes: Nodes, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    with RayEngine(nodes.address, machine="KIND", keep=KEPT) as pinned:
        report = sweep_target(
            "train.py",
            axes=[parse_axis("n=4..16")],
            arguments=["{n}", QUICK],
            devices=["t4"],
            engine=pinned,
            keep=KEPT,
        )
    assert report.failures == ()
    measured = {point.settings["n"] for point in report.points if point.source is Source.MEASURED}
    assert measured >= {4, 16}
    assert {point.kind for point in report.points} == {DeviceKind.CPU, DeviceKind.GPU}
    raylet = raylet_of(nodes.pinned)
    taken = stamps(folder)
    assert {stamp.raylet for stamp in taken} == {0, raylet}  # 0 is not on Ray: the traces
    assert {int(stamp.point) for stamp in taken if stamp.raylet == raylet} == measured


def test_what_cannot_run_there_is_named_with_the_node(
    nodes: Nodes, engine: RayEngine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = request_of("a")
    (folder / "train.py").rename(folder / "moved.py")
    with pytest.raises(BreakevenError, match=r"the Ray node .+ has no file .+train\.py"):
        list(engine.measure([request]))
    (folder / "moved.py").rename(folder / "train.py")
    monkeypatch.setattr(ray_engine, "installed_version", lambda _: "9.9.9")
    with (
        RayEngine(nodes.address) as other,
        pytest.raises(BreakevenError, match=r"the Ray node .+ has breakeven .+ here is 9\.9\.9"),
    ):
        list(other.measure([request]))


@pytest.mark.full
def test_a_connection_of_the_caller_stays(nodes: Nodes, engine: RayEngine) -> None:
    import ray

    engine.close()
    ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
    try:
        with RayEngine(machine="KIND"):
            pass
        assert ray.is_initialized()
        with (
            pytest.raises(BreakevenError, match="already belongs to the Ray cluster"),
            RayEngine("127.0.0.1:1"),
        ):
            raise AssertionError("it has joined")
        assert ray.is_initialized()
    finally:
        ray.shutdown()


@pytest.mark.full
def test_nothing_listens_there() -> None:
    started_s = time.monotonic()
    with (
        pytest.raises(BreakevenError, match="no Ray cluster answers at"),
        RayEngine("127.0.0.1:1"),
    ):
        raise AssertionError("it has joined")
    assert time.monotonic() - started_s < 25.0


@pytest.mark.full
def test_nothing_is_lost_with_a_node_that_dies(nodes: Nodes, folder: Path) -> None:
    by_raylet = {raylet_of(node): node for node in (nodes.pinned, nodes.add("KIND"))}
    (folder / "driver.py").write_text(textwrap.dedent(DRIVER))
    # Each in a process of its own: what Ray prints there must not reach its output.
    driver = [sys.executable, "driver.py", nodes.address, "KIND"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*driver, "a", "b", "c", "d"], **pipes) as process:
        wait_until(lambda: any(stamp.point == "b" for stamp in stamps(folder)))
        killed = next(stamp.raylet for stamp in stamps(folder) if stamp.point == "b")
        nodes.cluster.remove_node(by_raylet.pop(killed), allow_graceful=False)
        output, errors = process.communicate(timeout=120.0)

    # Another node took over at once, or after the points that were behind it.
    assert sorted(output.split()) == ["a:PlainRun", "b:PlainRun", "c:PlainRun", "d:PlainRun"]
    assert errors == ""
    taken = stamps(folder)
    killed_ns = max(stamp.time_ns for stamp in taken if stamp.raylet == killed)
    after = [stamp for stamp in taken if stamp.time_ns > killed_ns]
    assert {stamp.point for stamp in after} == {"b", "c", "d"}
    assert {stamp.point for stamp in taken if stamp.raylet == killed} == {"a", "b"}
    assert are_ended(taken)

    with subprocess.Popen([*driver, "b"], **pipes) as process:
        wait_until(lambda: len(stamps(folder)) > len(taken))
        for node in by_raylet.values():
            nodes.cluster.remove_node(node, allow_graceful=False)
        output, errors = process.communicate(timeout=120.0)
    assert output == ""
    assert errors.startswith("no node of the Ray cluster")
