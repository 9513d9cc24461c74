"""A process that ends together with all that it starts."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from breakeven.capture.process.children import OF_ITS_OWN, end_all_with_this_process, end_tree
from breakeven.capture.process.run_to_end import EndRequest, become_script
from breakeven.trace import Configuration

# It prints the id of a process that it starts, and waits for it.
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
child.wait()
"""


class Function:
    """One of kernel32, which takes note of its calls."""

    def __init__(self, name: str, result: int, calls: list[tuple[Any, ...]]) -> None:
        self._name, self._result, self._calls = name, result, calls
        self.restype: Any = ctypes.c_int

    def __call__(self, *arguments: Any) -> int:
        values = tuple(getattr(argument, "value", argument) for argument in arguments)
        self._calls.append((self._name, *values))
        assert self._result < 2**31 or self.restype is ctypes.c_void_p, "the handle would be cut"
        return self._result


class Kernel32:
    """Makes jobs, whose handles do not fit into 32 bits."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        results = {"CreateJobObjectW": 2**40, "GetCurrentProcess": 2**64 - 1}
        for name in (*results, "SetInformationJobObject", "AssignProcessToJobObject"):
            setattr(self, name, Function(name, results.get(name, 1), self.calls))


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="Windows has no groups of processes")
def test_what_a_process_started_ends_with_it() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, **OF_ITS_OWN
    ) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) > 0
        end_tree(process)
        # The end of the file: nobody has it open any more, the child included.
        assert process.stdout.read() == ""
    end_tree(process)  # a second time does nothing


def test_without_groups_the_process_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "killpg", raising=False)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        end_tree(process)
    assert process.returncode != 0


def test_on_windows_a_process_is_alone_to_hold_the_job_that_ends_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = Kernel32()
    monkeypatch.setattr(ctypes, "WinDLL", {"kernel32": kernel}.__getitem__, raising=False)
    end_all_with_this_process()
    create, limit, process, assign = kernel.calls
    assert create == ("CreateJobObjectW", None, None)
    assert limit[:3] == ("SetInformationJobObject", 2**40, 9)
    assert limit[3]._obj.flags == 0x2000
    assert limit[4] == ctypes.sizeof(limit[3]._obj) == 144  # as Windows has it, on 64 bits
    assert process == ("GetCurrentProcess",)
    assert assign == ("AssignProcessToJobObject", 2**40, 2**64 - 1)


def test_where_a_process_cannot_be_replaced_it_waits_for_the_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands: list[list[str]] = []

    def call(command: list[str]) -> int:
        commands.append(command)
        return 7

    refuse: Callable[..., None] = pytest.fail
    monkeypatch.delattr(os, "fork", raising=False)
    monkeypatch.setattr(os, "execv", refuse)
    monkeypatch.setattr(subprocess, "call", call)
    request = EndRequest(
        is_module=False, device="cpu", has_cuda=False, configuration=Configuration(),
        num_steps=0, is_quiet=True,
    )  # fmt: skip
    with pytest.raises(SystemExit) as ended:
        become_script(request, "train.py", ["--lr", "1"])
    assert ended.value.code == 7
    assert commands[0][-3:] == ["train.py", "--lr", "1"]
