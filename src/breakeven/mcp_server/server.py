"""The MCP server: each tool runs the command of its name in a process of its own.

The command's stdout is discarded, since ours belongs to the protocol. Its report goes to a file of
the cache, from which the answer is made; its stderr gives the progress and the error.
"""

from __future__ import annotations

import re
import secrets
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import platformdirs
from anyio.streams.buffered import BufferedByteReceiveStream
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from breakeven import __version__
from breakeven.errors import BreakevenError
from breakeven.mcp_server.answer import answer_of, answer_text
from breakeven.report import read_document, to_json

INSTRUCTIONS = """\
breakeven shows whether a GPU pays off for a PyTorch training script, without a GPU. The tools run
the script for some steps on this machine, and no code leaves it. Files that the script writes are
discarded; its network traffic is real. Each answer names a report_uri: pass it as target to
explain, cost or normal, and the script is not run again."""

URI = "breakeven://reports/"
# Longer than any command takes to end its processes; see dispatch.py.
_END_LIMIT_S = 15.0
_MAX_LINE_BYTES = 1_000_000
_MAX_KEPT = 50

_LIST = {"type": "array", "items": {"type": "string"}}
# The options of the tools: name, option of the command, schema.
_OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "devices": ("--device", {**_LIST, "description": "GPU names, such as T4; default: six GPUs"}),
    "host": (
        "--host",
        {"type": "string", "description": "machine around the GPUs: here, desktop, cloud, colab"},
    ),
    "measured": (
        "--measured",
        {**_LIST, "description": "speeds that you saw elsewhere, such as 'T4: 340 it/s'"},
    ),
    "steps": ("--steps", {"type": "integer", "description": "length of the training in steps"}),
    "epochs": ("--epochs", {"type": "integer", "description": "length in epochs; not with steps"}),
    "deadline": ("--deadline", {"type": "string", "description": "latest end, such as 8h"}),
    "budget_usd": ("--budget", {"type": "number", "description": "most money, in dollars"}),
    "machines": (
        "--machines",
        {"type": "string", "description": "only these, by comma: T4,g5.xlarge"},
    ),
    "time_limit_s": (
        "--time-limit",
        {"type": "number", "description": "end a run of the script after this time; default 300"},
    ),
}
_COMMON = {
    "target": {
        "type": "string",
        "description": "path of a script, path.py:function, or report_uri of an earlier answer",
    },
    "script_arguments": {
        **_LIST,
        "description": "arguments of the script, such as ['--batch-size', '256']",
    },
    "folder": {"type": "string", "description": "folder to run the script in"},
}
_RUNS = "Runs the script, if target is one; files that it writes are discarded."
# The description of each tool, and its options.
_TOOLS = {
    "check": (
        f"Does a GPU pay off for this training script? Step time on each device. {_RUNS}",
        ("devices", "host", "measured", "steps", "epochs", "time_limit_s"),
    ),
    "explain": (
        f"Why is the GPU (not) faster? Causes by line, with the gain of each fix. {_RUNS}",
        ("devices", "host", "measured", "time_limit_s"),
    ),
    "cost": (
        f"Hours and dollars of the whole training, here and on rented machines. {_RUNS}",
        ("steps", "epochs", "deadline", "budget_usd", "machines", "time_limit_s"),
    ),
    "normal": (
        f"Is this speed normal for that GPU, and if not, why? Needs measured. {_RUNS}",
        ("measured", "devices", "host", "time_limit_s"),
    ),
}

Tell = Callable[[str], Awaitable[None]]
# Runs a command in a folder; reports its progress.
Run = Callable[[Sequence[str], Path | None, Tell], Awaitable[None]]
_Context = ServerRequestContext[Any]


def serve() -> None:
    """Answer requests from stdin on stdout until stdin ends."""

    async def answer() -> None:
        server = build_server()
        async with stdio_server() as (requests, answers):
            await server.run(requests, answers, server.create_initialization_options())

    anyio.run(answer)


async def run_command(arguments: Sequence[str], folder: Path | None, tell: Tell) -> None:
    """Run a command of breakeven in a process of its own; if cancelled, end it.

    Args:
        arguments: The command line.
        folder: Folder to run it in; None for the server's.
        tell: Receives each line about its progress.

    Raises:
        BreakevenError: The command failed; the message is its own.
    """
    command = [sys.executable, "-P", "-m", "breakeven", *arguments]
    lines: list[str] = []
    process = await anyio.open_process(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=folder
    )
    try:
        assert process.stderr is not None
        stderr = BufferedByteReceiveStream(process.stderr)
        try:
            while True:
                line = await stderr.receive_until(b"\n", _MAX_LINE_BYTES)
                lines.append(line.decode(errors="replace").rstrip())
                if not any(one.startswith("error: ") for one in lines):
                    await tell(lines[-1])
        except (anyio.EndOfStream, anyio.IncompleteRead):
            pass
        status = await process.wait()
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.terminate()
                with anyio.move_on_after(_END_LIMIT_S):
                    await process.wait()
            if process.returncode is None:
                process.kill()
            await process.aclose()
    if status:
        begins = [number for number, line in enumerate(lines) if line.startswith("error: ")]
        said = "\n".join(lines[begins[-1] :] if begins else lines[-5:])
        raise BreakevenError(said.removeprefix("error: ") or f"breakeven ended with {status}")


def build_server(run: Run = run_command) -> Server[Any]:
    """Return the server.

    Args:
        run: Runs a command; a test has its own.
    """

    async def list_tools(_: _Context, __: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_tool(name) for name in _TOOLS])

    async def call_tool(
        context: _Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        num_lines = 0

        async def tell(line: str) -> None:
            nonlocal num_lines
            num_lines += 1
            await context.session.report_progress(num_lines, None, line)

        name = f"{params.name}-{secrets.token_hex(4)}"
        path = _folder() / f"{name}.json"
        try:
            arguments = params.arguments or {}
            command = _command(params.name, arguments, path)
            folder = Path(arguments["folder"]) if arguments.get("folder") else None
            if folder is not None and not folder.is_dir():
                raise BreakevenError(f"there is no folder {folder}")
            _make_room(path.parent)
            await run(command, folder, tell)
            answer = answer_of(read_document(path), uri=URI + name, path=str(path))
        except BreakevenError as error:
            text = types.TextContent(type="text", text=error.sentence)
            return types.CallToolResult(content=[text], is_error=True)
        link = types.ResourceLink(name=name, uri=URI + name, mime_type="application/json")
        text = types.TextContent(type="text", text=answer_text(answer))
        return types.CallToolResult(content=[text, link], structured_content=answer.values)

    async def list_templates(_: _Context, __: object) -> types.ListResourceTemplatesResult:
        template = types.ResourceTemplate(
            name="report",
            uri_template=f"{URI}{{name}}",
            description="a whole report as JSON, without the recorded step",
            mime_type="application/json",
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def read_resource(
        _: _Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        try:
            text = to_json(read_document(_kept(str(params.uri)))).decode()
        except BreakevenError as error:
            raise MCPError(types.INVALID_PARAMS, error.sentence) from error
        contents = types.TextResourceContents(
            uri=params.uri, mime_type="application/json", text=text
        )
        return types.ReadResourceResult(contents=[contents])

    return Server(
        "breakeven",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
    )


def _tool(name: str) -> types.Tool:
    description, options = _TOOLS[name]
    schemas = {option: _OPTIONS[option][1] for option in options}
    return types.Tool(
        name=name,
        description=description,
        input_schema={
            "type": "object",
            "properties": {**_COMMON, **schemas},
            "required": ["target"],
            "additionalProperties": False,
        },
        # A script may change anything but files, and use the network.
        annotations=types.ToolAnnotations(
            read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True
        ),
    )


def _command(tool: str, arguments: Mapping[str, Any], path: Path) -> list[str]:
    """Return the command line of a call, which writes its report to a file.

    Raises:
        BreakevenError: There is no such tool or option, or the target is missing.
    """
    if tool not in _TOOLS:
        raise BreakevenError(f"there is no tool {tool!r}; there are: {', '.join(_TOOLS)}")
    known = (*_COMMON, *_TOOLS[tool][1])
    for unknown in arguments.keys() - {*known}:
        raise BreakevenError(f"{tool} has no option {unknown!r}; it has: {', '.join(known)}")
    target = str(arguments.get("target") or "")
    if not target or target.startswith("-"):
        raise BreakevenError(f"target must be a script or a report_uri, not {target!r}")
    if target.startswith(URI):
        target = str(_kept(target))
        if tool == "check":
            raise BreakevenError(
                "a stored report is not checked again",
                hint="pass it to explain, cost or normal, or pass the script",
            )
    flags: list[str] = []
    for name in _TOOLS[tool][1]:
        if (value := arguments.get(name)) is not None:
            # Joined, so that a value cannot pass for another option.
            flags += (f"{_OPTIONS[name][0]}={one}" for one in _listed(value))
    rest = _listed(arguments.get("script_arguments") or [])
    return [tool, *flags, "-o", str(path), target, *(["--", *rest] if rest else [])]


def _listed(value: Any) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else [str(value)]


def _folder() -> Path:
    return Path(platformdirs.user_cache_dir("breakeven")) / "reports"


def _kept(uri: str) -> Path:
    """Return the file of a report.

    Raises:
        BreakevenError: There is no such report.
    """
    name = uri.removeprefix(URI)
    path = _folder() / f"{name}.json"
    if not re.fullmatch(r"[a-z]+-[0-9a-f]{8}", name) or not path.is_file():
        raise BreakevenError(
            f"there is no report {uri}; the last {_MAX_KEPT} are kept", hint="run the script again"
        )
    return path


def _make_room(folder: Path) -> None:
    """Make the folder of the reports, and remove the oldest reports."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
        for path in files[: max(len(files) - _MAX_KEPT + 1, 0)]:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise BreakevenError(f"cannot keep reports in {folder}: {error.strerror}") from error
