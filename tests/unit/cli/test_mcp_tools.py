"""The tools, called by the SDK's own client in this process; a fake runs the commands."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from breakeven.cli import main
from breakeven.cli.dispatch import build_parser
from breakeven.cli.mcp_server import _OPTIONS, _TOOLS, _command, build_server, run_command
from breakeven.errors import BreakevenError
from breakeven.report import CheckReport, to_json
from factories import normals

Tell = Callable[[str], Awaitable[None]]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "breakeven" / "reports"


class FakeRuns:
    """Writes a report to the file that a command names, and notes the command."""

    def __init__(self, error: BreakevenError | None = None) -> None:
        self.commands: list[tuple[list[str], Path | None]] = []
        self._error = error

    async def __call__(self, arguments: Sequence[str], folder: Path | None, tell: Tell) -> None:
        self.commands.append(([*arguments], folder))
        await tell("starting torch")
        await tell("measuring the step on this CPU")
        if self._error is not None:
            raise self._error
        path = Path(arguments[arguments.index("-o") + 1])
        report: CheckReport = normals.stored_run(normals.small_step())
        path.write_bytes(to_json(report, with_recording=True))


def call(runs: FakeRuns, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    """Return the results of calls to one server."""

    async def ask() -> list[Any]:
        async with Client(build_server(runs)) as client:
            return [await client.call_tool(name, arguments) for name, arguments in calls]

    return anyio.run(ask)


def test_a_report_is_kept_read_and_passed_on_instead_of_the_script(cache: Path) -> None:
    runs = FakeRuns()
    heard: list[str | None] = []

    async def ask() -> None:
        async def hear(progress: float, total: float | None, message: str | None) -> None:
            heard.append(message)

        async with Client(build_server(runs)) as client:
            checked = await client.call_tool(
                "check", {"target": "train.py"}, progress_callback=hear
            )
            uri = checked.structured_content["report_uri"]
            assert uri in checked.content[0].text
            assert checked.content[1].uri == uri
            assert uri in [one.uri for one in (await client.list_resources()).resources]
            whole = await client.read_resource(uri)
            assert '"verdict"' in whole.contents[0].text
            explained = await client.call_tool("explain", {"target": uri, "device": ["T4"]})
            assert not explained.is_error
            again = await client.call_tool("check", {"target": uri})
            assert again.is_error
            assert "pass it to explain, cost or normal" in again.content[0].text

    anyio.run(ask)
    assert heard == ["starting torch", "measuring the step on this CPU"]
    (check, _), (explain, _) = runs.commands
    stored = check[check.index("-o") + 1]
    assert explain == ["explain", "--device=T4", "-o", explain[3], stored]
    assert Path(stored).parent == cache


def test_options_become_those_of_the_command(tmp_path: Path) -> None:
    runs = FakeRuns()
    arguments = {
        "target": "train.py",
        "device": ["RTX 4090", "--force"],
        "epochs": 3,
        "folder": str(tmp_path),
        "script_arguments": ["--lr", "0.1"],
    }
    (done,) = call(runs, ("check", arguments))
    assert not done.is_error
    ((command, folder),) = runs.commands
    place = command[command.index("-o") + 1]
    own = ["check", "--device=RTX 4090", "--device=--force", "--epochs=3", "-o", place, "train.py"]
    assert command == [*own, "--", "--lr", "0.1"]
    assert folder == tmp_path
    # What a value says is never an option.
    parsed = build_parser("check").parse_args(own)
    assert (parsed.devices, parsed.force) == (["RTX 4090", "--force"], False)


@pytest.mark.parametrize("name", _TOOLS)
def test_each_option_of_a_tool_is_one_of_its_command(name: str) -> None:
    # Of two options that exclude each other, one.
    options = {option: "1" for option in _TOOLS[name][1] if option != "epochs"}
    assert {*options} <= {*_OPTIONS}
    command = _command(name, {"target": "train.py", **options}, Path("run.json"))
    assert build_parser(name).parse_args(command).command == name


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("check", {"target": "a.py", "gpu": "T4"}, "check has no option 'gpu'; it has: target"),
        ("check", {}, "target must be a script or a report_uri"),
        ("check", {"target": "--help"}, "not '--help'"),
        ("tune", {"target": "a.py"}, "no tool 'tune'; there are: check, explain, cost, normal"),
        ("check", {"target": "a.py", "folder": "/no/such"}, "there is no folder /no/such"),
        ("explain", {"target": "breakeven://reports/check-01234567"}, "there is no report"),
        ("explain", {"target": "breakeven://reports/../../etc"}, "there is no report"),
    ],
)
def test_a_wrong_call_is_one_clear_error(tool: str, arguments: dict[str, Any], said: str) -> None:
    runs = FakeRuns()
    (done,) = call(runs, (tool, arguments))
    assert done.is_error
    assert said in done.content[0].text
    assert runs.commands == []


def test_a_failing_command_is_a_tool_error_in_its_own_words() -> None:
    error = BreakevenError("train.py raised KeyError: 'x'", hint="check that it runs")
    (done,) = call(FakeRuns(error), ("check", {"target": "train.py"}))
    assert done.is_error
    assert done.content[0].text == "train.py raised KeyError: 'x'; check that it runs"


def test_hints_name_the_options_of_the_tool() -> None:
    error = BreakevenError(
        "it needs --measured 'T4: 340 it/s'; see breakeven devices --hosts",
        hint="raise --time-limit, or pass --batch-per-gpu",
    )
    (done,) = call(FakeRuns(error), ("check", {"target": "train.py"}))
    assert done.content[0].text == (
        "it needs measured 'T4: 340 it/s'; see breakeven devices --hosts; "
        "raise time_limit, or pass --batch-per-gpu"
    )


def test_the_annotations_say_that_scripts_are_executed() -> None:
    async def ask() -> None:
        async with Client(build_server(FakeRuns())) as client:
            assert "no code leaves it" in client.instructions
            for tool in (await client.list_tools()).tools:
                assert "Runs the script" in tool.description
                assert not tool.annotations.read_only_hint
                assert tool.annotations.open_world_hint
            with pytest.raises(MCPError, match="there is no report"):
                await client.read_resource("breakeven://reports/check-01234567")

    anyio.run(ask)


def test_runs_take_turns_since_one_would_slow_the_other() -> None:
    running: list[int] = [0]
    most: list[int] = []
    runs = FakeRuns()

    async def run(arguments: Sequence[str], folder: Path | None, tell: Tell) -> None:
        running[0] += 1
        most.append(running[0])
        await anyio.wait_all_tasks_blocked()
        await runs(arguments, folder, tell)
        running[0] -= 1

    async def ask() -> None:
        async with Client(build_server(run)) as client, anyio.create_task_group() as calls:
            for _ in range(3):
                calls.start_soon(client.call_tool, "check", {"target": "train.py"})

    anyio.run(ask)
    assert most == [1, 1, 1]


def test_only_the_last_reports_are_kept(cache: Path) -> None:
    cache.mkdir(parents=True)
    for number in range(60):
        (cache / f"check-{number:08x}.json").write_text("{}")
    call(FakeRuns(), ("check", {"target": "train.py"}))
    assert len(list(cache.glob("*.json"))) == 50


def test_the_commands_of_breakeven_fail_in_their_own_words(tmp_path: Path) -> None:
    async def tell(line: str) -> None:
        raise AssertionError(line)

    async def ask() -> None:
        await run_command(["check", "absent.py", "-q"], tmp_path, tell)

    with pytest.raises(BreakevenError, match=r"^there is no file 'absent.py'"):
        anyio.run(ask)


def test_without_the_sdk_the_command_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] in ("mcp", "mcp_types"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return imported(name, *rest)

    imported = builtins.__import__
    monkeypatch.delitem(sys.modules, "breakeven.cli.mcp_server", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    assert main(["mcp"]) == 3
    assert 'pip install "breakeven[mcp]"' in capsys.readouterr().err
