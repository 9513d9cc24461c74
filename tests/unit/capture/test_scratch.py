"""Layers over the files of a user, in processes made for it."""

from __future__ import annotations

import ctypes
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from breakeven.capture.messages import Keep
from breakeven.capture.protect import overlay
from breakeven.capture.protect.scratch import Layer, Scratch, remove_tree
from breakeven.trace import FileWrites, WriteProtection
from faststep.codegen.toolchain import kept_steps

Work = Callable[[], None]

# A user and a group of which nothing is known.
_OTHER, _SHARED = 4_000, 5_000


@pytest.fixture
def layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Layer:
    """Return the layer of a run, where this system allows one: an overlay if not told otherwise."""
    wanted = getattr(request, "param", WriteProtection.OVERLAY)
    monkeypatch.setenv("BREAKEVEN_WRITE_PROTECTION", wanted)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    layer = Scratch(scratch, Keep()).layer()
    if layer.protection is not wanted:
        pytest.skip("this system allows no mount namespace")
    return layer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of the user's."""
    folder = tmp_path / "user's, own: folder"
    folder.mkdir()
    (folder / "model.pt").write_text("good")
    (folder / "old").write_text("old")
    return folder


def run_behind(layer: Layer, work: Work, before: Work = lambda: None) -> FileWrites:
    child = os.fork()
    if child == 0:
        try:
            before()
            layer.enter()
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, "see the output"
    return layer.writes()


def changes(writes: FileWrites, folder: Path) -> dict[str, tuple[str, int]]:
    return {
        str(Path(each.path).relative_to(folder)): (each.change.value, each.num_bytes)
        for each in writes.files
    }


def spoil(folder: Path) -> Work:
    def work() -> None:
        (folder / "model.pt").write_text("noise")
        (folder / "old").unlink()
        (folder / "new").mkdir()
        (folder / "new" / "log").write_text("1")
        (folder / "empty").mkdir()

    return work


SPOILT = {
    "model.pt": ("changed", 5),
    "old": ("deleted", 0),
    "new/log": ("created", 1),
    "empty": ("created", 0),
}


@pytest.mark.parametrize(
    "layer", [WriteProtection.OVERLAY, WriteProtection.REDIRECTED], indirect=True
)
def test_what_a_run_writes_is_told_and_not_done(layer: Layer, folder: Path) -> None:
    writes = run_behind(layer, spoil(folder))
    assert {file.name: file.read_text() for file in folder.iterdir()} == {
        "model.pt": "good",
        "old": "old",
    }
    assert changes(writes, folder) == SPOILT
    assert (writes.num_files, writes.num_bytes) == (4, 6)


def test_a_user_without_rights_has_it_too(
    layer: Layer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_mounts_outside_of_a_user_namespace(monkeypatch)

    def work() -> None:
        spoil(folder)()
        (folder / "new").rename(folder / "newer")  # which such an overlay cannot do by itself
        assert (folder / "newer" / "log").read_text() == "1"
        held = Path("/proc/self/status").read_text()
        assert "CapEff:\t0000000000000000" in held

    writes = run_behind(layer, work)
    assert sorted(file.name for file in folder.iterdir()) == ["model.pt", "old"]
    found = changes(writes, folder)
    assert found.pop("newer/log") == ("created", 1)
    assert found == {name: what for name, what in SPOILT.items() if name != "new/log"}


# User, group and mode of a folder, with a folder of the user's own in it.
@pytest.mark.parametrize(
    ("user", "group", "mode"),
    [(_OTHER, _OTHER, 0o755), (0, 0, 0o755), (_OTHER, 0, 0o755), (0, _SHARED, 0o2775)],
)
def test_a_user_without_rights_has_it_in_folders_of_others(
    layer: Layer, user: int, group: int, mode: int
) -> None:
    if os.geteuid():
        pytest.skip("needs the rights to become another user")
    with TemporaryDirectory() as made:  # pytest's own folders are closed to others
        shared, own, scratch = (Path(made, name) for name in ("shared", "shared/own", "scratch"))
        for folder in (shared, own, scratch):
            folder.mkdir()
            os.chown(folder, _OTHER, _OTHER)
        os.chown(shared, user, group)
        shared.chmod(mode)
        Path(made).chmod(0o755)
        is_open = mode & 0o020 or user == _OTHER
        wanted = [own / "log", *([shared / "log"] if is_open else [])]
        of_others = Layer(scratch / "layer", layer.protection, (), (own,))

        def work() -> None:
            for file in wanted:
                file.write_text("1")

        writes = run_behind(of_others, work, before=become_another_user)
        assert not any(file.exists() for file in wanted)
        assert {file.path for file in writes.files} == {str(file) for file in wanted}


def become_another_user() -> None:
    os.setgroups([_SHARED])
    os.setgid(_OTHER)
    os.setuid(_OTHER)
    # Its own /proc is its own again, as after starting a program. Source: <linux/prctl.h>.
    assert ctypes.CDLL(None).prctl(4, 1, 0, 0, 0) == 0


def refuse_mounts_outside_of_a_user_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    libc = overlay._libc()

    class Refusing:
        def __getattr__(self, name: str) -> object:
            return getattr(libc, name)

        def unshare(self, flags: int) -> int:
            if not flags & overlay._CLONE_NEWUSER:
                ctypes.set_errno(1)
                return -1
            return libc.unshare(flags)

    monkeypatch.setattr(overlay, "_libc", Refusing)


def test_shared_memory_is_private(layer: Layer) -> None:
    left = Path("/dev/shm/breakeven-test")
    run_behind(layer, lambda: left.write_text("left") and None)
    assert not left.exists()


def test_kept_folders_are_written(tmp_path: Path, folder: Path, layer: Layer) -> None:
    kept = folder / "kept"
    kept.mkdir()
    keep = Keep(raw_folders=(os.fsencode(kept),))
    layer = Scratch(tmp_path / "scratch", keep).layer()
    run_behind(layer, lambda: (kept / "data").write_text("downloaded") and None)
    assert (kept / "data").read_text() == "downloaded"


def test_a_closed_folder_is_removed(tmp_path: Path) -> None:
    closed = tmp_path / "layer" / "closed"
    closed.mkdir(parents=True)
    (closed / "file").touch()
    closed.chmod(0o500)
    remove_tree(tmp_path / "layer")
    assert not (tmp_path / "layer").exists()


def test_nothing_is_told_of_files_that_were_written_themselves(tmp_path: Path) -> None:
    layer = Scratch(tmp_path, Keep(writes=True)).layer()
    assert layer.writes() == FileWrites(protection=WriteProtection.NONE)


@pytest.mark.parametrize("layer", [WriteProtection.REDIRECTED], indirect=True)
def test_first_that_is_written_may_be_torchs(layer: Layer, folder: Path) -> None:
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir()

    def work() -> None:
        torch.save(torch.ones(2), checkpoints / "best.pt")
        assert torch.load(checkpoints / "best.pt").tolist() == [1.0, 1.0]

    writes = run_behind(layer, work)
    assert [Path(each.path) for each in writes.files] == [checkpoints / "best.pt"]
    assert list(checkpoints.iterdir()) == []


def test_what_is_compiled_for_all_runs_is_kept_from_the_first_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    layer = Scratch(tmp_path / "scratch", Keep(writes=True)).layer()
    assert kept_steps() in layer.kept
    assert kept_steps().is_dir()
