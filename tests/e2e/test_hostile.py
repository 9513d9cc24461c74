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
from breakeven.studies import Runner

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="scripts do what Linux lets them"),
]

FULL = pytest.mark.full
FAMILIES = (damage, endings, files, network, processes, python_itself, texts, training)
SCRIPTS = [
    pytest.param(
        script,
        id=f"{family.__name__.rpartition('.')[2]}: {script.name}",
        marks=() if script.in_sample else FULL,
    )
    for family in FAMILIES
    for script in family.SCRIPTS
]
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
    runner = Runner(launcher, target, limit_s, SilentProgress(), num_threads=1, budget_s=_BUDGET_S)
    try:
        traced, plain = runner.record(), runner.time(watches_program=False)
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


def test_scripts_differ_and_each_family_is_in_the_sample_answered_and_refused() -> None:
    scripts = [script for family in FAMILIES for script in family.SCRIPTS]
    assert len({script.text for script in scripts}) == len(scripts)
    assert {script.name for script in scripts} >= OF_COMMAND
    for family in FAMILIES:
        reasons = {bool(one.reason) for one in family.SCRIPTS}
        assert {bool(one.reason) for one in family.SCRIPTS if one.in_sample} == reasons
