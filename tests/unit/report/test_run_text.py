"""What became of a script's files, in words."""

from __future__ import annotations

from breakeven.report.run_text import side_effect_facts
from breakeven.trace import FileChange, FileWrite, FileWrites, WriteProtection

FILES = tuple(
    FileWrite(path=f"/home/me/{name}", change=change, num_bytes=size)
    for name, change, size in (
        ("best.pt", FileChange.CHANGED, 45_000_000),
        ("log.txt", FileChange.CREATED, 2_000),
        ("old\x1b[31m.pt", FileChange.DELETED, 0),
        ("more.txt", FileChange.CREATED, 1),
    )
)


def text(writes: FileWrites | None) -> str:
    return "".join(fact.text for fact in side_effect_facts(writes))


def test_files_are_named_and_counted() -> None:
    writes = FileWrites(
        protection=WriteProtection.OVERLAY, files=FILES, num_files=4, num_bytes=45_002_001
    )
    said = text(writes)
    assert said.startswith("4 files, 45 MB (best.pt, log.txt, old")
    assert said.endswith(" deleted, …), written to a layer that is thrown away")
    assert "\x1b" not in said


def test_a_single_file_has_no_ellipsis() -> None:
    writes = FileWrites(
        protection=WriteProtection.OVERLAY, files=FILES[1:2], num_files=1, num_bytes=2_000
    )
    assert text(writes) == "1 file, 2 kB (log.txt), written to a layer that is thrown away"


def test_it_says_which_protection_there_was() -> None:
    assert text(None) == ""
    assert text(FileWrites(protection=WriteProtection.OVERLAY)) == ""
    assert "native libraries are real" in text(FileWrites(protection=WriteProtection.REDIRECTED))
    assert text(FileWrites(protection=WriteProtection.NONE)) == "written for real, as asked for"
