"""Scripts that do whatever a script can: answered, or refused for what they did; nothing is left.

For every one of them alike: the project, the home, the system's files and shared memory are as
before, no process that it started lives, no temporary file is left, and it came back in time.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic

import pytest
from check_process import TAG_NAME, CheckRun, can_overlay, end_leftovers
from hostile import damage, endings, files, network, processes, python_itself, texts, training
from hostile.ground import TRAINING, Ground, shared_memory
from hostile.script import Hostile

import breakeven
from breakeven.capture import Launcher, find_target
from breakeven.errors import BreakevenError, ScriptError
from breakeven.progress import SilentProgress
from breakeven.session import Runs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="scripts do what Linux lets them"),
]

FULL = pytest.mark.full
FAMILIES = (damage, endings, files, network, processes, python_itself, texts, training)
# `.ci/run` tries these scripts alone, one of each kind; `.ci/full` tries all of them.
SAMPLE = {
    # Damage: by Python, a shell, the C library, a map, a link; to content, place and rights.
    "deletes all of its folder",
    "deletes its data by a shell",
    "deletes its data by the C library",
    "moves its data away",
    "needs what it has just deleted",
    "closes its data off",
    "saves over a good checkpoint at every step",
    "maps its data for writing, as memory",
    "writes through a link out of its folder",
    # Endings: by a status, a signal, an alarm, a fault, an exception, not at all; input, output,
    # descriptors and limits.
    "ends by a status after steps",
    "kills itself",
    "is interrupted by alarms without end",
    "reads memory that is not there after steps",
    "ignores what asks it to end, and hangs",
    "asks what to do",
    "closes all descriptors, takes their numbers",
    "lets itself write no file",
    "says that there is no memory",
    "raises with words that are no text",
    "raises at its exit",
    "prints what looks like an answer",
    # Files: beside it, in the home, of the system, of no usual kind, in large numbers.
    "writes to the home of its user",
    "installs a package of its own",
    "makes a fifo",
    "is not let write",
    "makes 10,000 files",
    "keeps a database with a journal",
    # The network.
    "calls where nobody listens",
    "leaves a server listening",
    # Processes: that stay, of Python's libraries, threads, groups, its parent, another program.
    "leaves a program running",
    "leaves a daemon",
    "leaves a pool of processes",
    "leaves shared memory",
    "leaves threads that never end",
    "goes to a session of its own",
    "becomes another program",
    "stops its parent",
    # Python: output, environment, modules, clock, tracing, built-ins, torch, hooks, limits.
    "has an output that fails",
    "empties its environment",
    "forgets all modules of breakeven",
    "stops the clock",
    "traces every line",
    "replaces open",
    "replaces the step of the optimizer",
    "has finalizers that raise",
    "has an auditor that allows nothing",
    # Texts: no Python, another encoding, long, without what it imports.
    "is half of a script",
    "is UTF-16",
    "has a line of 2 MB",
    "imports what is not there",
    # Training: none, wrong, in odd places, odd models and data, without a GPU.
    "takes no step",
    "raises at its third step",
    "trains in two threads at once",
    "makes a new model at every step",
    "has workers that end",
    "has data that never comes",
    "wants a GPU",
}
SCRIPTS = [
    pytest.param(
        script,
        id=f"{family.__name__.rpartition('.')[2]}: {script.name}",
        marks=() if script.name in SAMPLE else FULL,
    )
    for family in FAMILIES
    for script in family.SCRIPTS
]
_LEAST_SCRIPTS = 150
# These are given to the whole command too, which runs each ten times.
OF_COMMAND = {
    "deletes all of its folder",
    "forgets all modules of breakeven",
    "leaves a daemon",
    "prints what looks like an answer",
    "raises with words that are no text",
    "writes nonsense to all descriptors",
}
COMMAND_SAMPLE = "leaves a daemon"
# What comes on top of the runs: at most four, each with its limit and what its end may take.
_MOST_RUNS = 4
_END_LIMIT_S = 15.0
# Lines and numbers do not matter here.
_BUDGET_S = 0.03
_PACKAGE = str(Path(breakeven.__file__).parent)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """Yield the place where all scripts of this process are run."""
    tmp_path_factory.getbasetemp()  # that of other tests is not to be made in ours
    folder = Path(tempfile.mkdtemp(prefix="h-"))
    ground = Ground(folder)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**ground.variables, TAG_NAME: ground.tag}.items():
            patch.setenv(name, value)
        patch.setattr(tempfile, "tempdir", None)
        patch.chdir(folder)
        ground.lay_out()
        yield ground
        ground.close()
        left = end_leftovers(ground.tag)
        names = [path.name for path in ground.temporary.iterdir()]
    shutil.rmtree(folder)
    assert (left, names) == ([], [])


@pytest.mark.parametrize("hostile", SCRIPTS)
def test_hostile_script(
    hostile: Hostile, ground: Ground, record_property: Callable[[str, object], None]
) -> None:
    if hostile.needs_layer and not can_overlay():
        pytest.skip("this system allows no mount namespace")
    ground.script.write_bytes(hostile.text)
    launcher = ground.launcher()
    launcher.ready()
    shared, before, begun_s = shared_memory(), ground.state(), monotonic()
    is_whole = False
    try:
        error = run(launcher, hostile)
        is_whole = error is None or isinstance(error, ScriptError)
    finally:
        elapsed_s, output = monotonic() - begun_s, launcher.output
        if not is_whole:  # it may be that the launcher cannot go on
            ground.close()
    left, after = ground.left(shared), ground.state()
    changed = {path for path in before.keys() | after if before.get(path) != after.get(path)}
    if left or changed:
        ground.close()
        end_leftovers(ground.tag)
        ground.lay_out()

    assert left == []
    assert changed == set()
    assert elapsed_s < _MOST_RUNS * (hostile.time_limit_s + _END_LIMIT_S)
    assert _PACKAGE not in output, output
    said = f"{error}\n{error.hint}" if error else "it was answered"
    if hostile.reason:
        assert error is not None, said
        assert "bug in breakeven" not in said, said
        assert re.search(hostile.reason, str(error)), said
    else:
        assert error is None, f"{said}\n{output}"
    record_property("hostile", "refused" if hostile.reason else "answered")


def run(launcher: Launcher, hostile: Hostile) -> BreakevenError | None:
    """Record and time the script, as a check does; return why there is no answer."""
    target = find_target("train.py")
    limit_s = hostile.time_limit_s
    runs = Runs(launcher, target, limit_s, SilentProgress(), num_threads=1, budget_s=_BUDGET_S)
    try:
        traced, plain = runs.trace(), runs.measure(watches_program=False)
    except BreakevenError as error:
        return error
    assert len(traced.trace.ops) > 0
    assert plain.measurement.median_ns > 0
    return None


@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param(script, id=script.name, marks=() if script.name == COMMAND_SAMPLE else FULL)
        for family in FAMILIES
        for script in family.SCRIPTS
        if script.name in OF_COMMAND
    ],
)
def test_hostile_script_of_the_command_line(
    hostile: Hostile, run_check: Callable[..., CheckRun], work_folder: Path
) -> None:
    (work_folder / "train.py").write_bytes(hostile.text)
    (work_folder / "training.py").write_text(TRAINING)
    before = {path: path.read_bytes() for path in work_folder.iterdir()}
    checked = run_check("train.py")
    assert {path: path.read_bytes() for path in work_folder.iterdir()} == before
    if hostile.reason:
        assert checked.returncode == 3
        assert re.search(hostile.reason, checked.stderr), checked.stderr
    else:
        assert checked.returncode == 0, checked.stderr
        assert checked.document["step"]["num_ops"] > 0


def test_they_are_many_and_different() -> None:
    scripts = [script for family in FAMILIES for script in family.SCRIPTS]
    assert len({script.text for script in scripts}) == len(scripts) >= _LEAST_SCRIPTS


def test_each_family_is_in_the_sample_answered_and_refused() -> None:
    scripts = [script for family in FAMILIES for script in family.SCRIPTS]
    assert {script.name for script in scripts} >= SAMPLE | OF_COMMAND
    for family in FAMILIES:
        reasons = {bool(one.reason) for one in family.SCRIPTS}
        assert {bool(one.reason) for one in family.SCRIPTS if one.name in SAMPLE} == reasons
