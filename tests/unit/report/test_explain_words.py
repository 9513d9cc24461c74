"""An explanation in words."""

from __future__ import annotations

import pytest

from breakeven.report.explain_shares import frames_text, short_names


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ((), ""),
        (("a.b:Trainer.fit",), "fit"),
        (("a.b:Trainer.fit", "a.c:Loop.backward"), "backward"),
        (("a.b:Trainer.fit", "a.c:Loop.step", "t:move"), "step → move"),
        # The class tells what a function of Python's own name does.
        (("a.b:Trainer.fit", "a.c:CombinedLoader.__next__"), "CombinedLoader.__next__"),
    ],
)
def test_functions_are_named_without_their_modules(frames: tuple[str, ...], text: str) -> None:
    assert frames_text(frames) == text


def test_files_are_named_below_the_folder_that_they_share() -> None:
    assert short_names(["/home/me/run/train.py", "/home/me/run/models/net.py", None]) == {
        "/home/me/run/train.py": "train.py",
        "/home/me/run/models/net.py": "models/net.py",
    }
    assert short_names(["/a/train.py"]) == {"/a/train.py": "train.py"}
    assert short_names(["train.py", "/a/net.py"]) == {
        "train.py": "train.py",
        "/a/net.py": "/a/net.py",
    }
    assert short_names([]) == {}
