"""The MCP server as an agent starts it: by the SDK's own client, over stdin and stdout."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from check_process import SCRIPTS, TAG_NAME, end_leftovers, processes_with
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError

pytestmark = pytest.mark.slow

CHATTY = """
import sys, torch
print('{"jsonrpc": "2.0"}', flush=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100_000):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()
    print(step)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StdioServerParameters]:
    """Return how to start the server; its processes are marked, and those left are ended."""
    folders = {name: str(tmp_path / name) for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME")}
    environment = {**os.environ, **folders, TAG_NAME: str(tmp_path)}
    yield StdioServerParameters(
        command=sys.executable, args=["-m", "breakeven", "mcp"], env=environment, cwd=tmp_path
    )
    end_leftovers(str(tmp_path))


def test_an_agent_checks_a_script_explains_the_report_and_reads_errors(
    server: StdioServerParameters, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(CHATTY)

    async def ask() -> None:
        heard: list[str | None] = []

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            heard.append(message)

        async with Client(server) as client:
            arguments = {"target": "train.py", "device": ["T4"]}
            checked = await client.call_tool("check", arguments, progress_callback=hear)
            assert not checked.is_error, checked.content
            # What the script prints reaches neither the protocol nor the answer.
            assert "jsonrpc" not in checked.content[0].text
            assert heard[0] == "starting torch"
            uri = checked.structured_content["report_uri"]
            (tmp_path / "train.py").unlink()  # a report needs no script
            explained = await client.call_tool("explain", {"target": uri})
            assert not explained.is_error, explained.content
            assert "T4" in explained.content[0].text
            raises = str(SCRIPTS / "raises_at_step_3.py")
            for arguments, said in (
                ({"target": raises}, "raised ZeroDivisionError: no step after the third"),
                ({"target": raises, "device": ["Q9"]}, "No device called “Q9”"),
                ({"target": "absent.py"}, "there is no file 'absent.py'"),
            ):
                failed = await client.call_tool("check", arguments)
                assert failed.is_error
                assert said in failed.content[0].text
                assert "Traceback" not in failed.content[0].text

    anyio.run(ask)
    assert processes_with(str(tmp_path)) == {}


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads the environments of all processes")
@pytest.mark.parametrize("how", ["the call is cancelled", "the client leaves"])
def test_a_run_ends_with_its_call(how: str, server: StdioServerParameters, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\ntime.sleep(600)\n")
    tag = str(tmp_path)

    async def ask() -> None:
        recording = anyio.Event()

        async def hear(progress: float, total: float | None, message: str | None) -> None:
            if message and "record" in message:
                recording.set()

        scope = anyio.CancelScope()

        async def check(client: Client) -> None:
            with contextlib.suppress(MCPError), scope:  # an error if the client leaves
                await client.call_tool("check", {"target": "train.py"}, progress_callback=hear)

        async with anyio.create_task_group() as calls, Client(server) as client:
            calls.start_soon(check, client)
            await recording.wait()
            assert len(processes_with(tag)) > 1
            if how == "the call is cancelled":
                scope.cancel()
                while len(processes_with(tag)) > 1:  # the server stays
                    await anyio.sleep(0.05)
                assert (await client.list_tools()).tools

    anyio.run(ask)
    assert processes_with(tag) == {}
    assert not list((tmp_path / "XDG_CACHE_HOME" / "breakeven").glob("reports/*"))
