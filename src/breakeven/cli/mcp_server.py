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
from anyio.streams.text import TextReceiveStream
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from breakeven import __version__
from breakeven.cli.mcp_answer import answer_of
from breakeven.errors import BreakevenError
from breakeven.report import read_document, to_json

INSTRUCTIONS = """\
breakeven shows whether a GPU pays off for a PyTorch training script, without a GPU. The tools run
the script for some steps on this machine, and no code leaves it. Files that the script writes are
discarded; its network traffic is real. check and explain answer with a report_uri: pass it as
target to explain, cost or normal, and the script is not run again."""

_URI = "breakeven://reports/"
# Longer than any command takes to end its processes; see dispatch.py.
_END_LIMIT_S = 15.0
_MAX_KEPT = 50

# Each option of a tool is the command's option of that name. A list is a repeated option.
_OPTIONS = {
    "target": (
        "string",
        "path of a script, path.py:function, or report_uri of an earlier check or explain",
    ),
    "script_arguments": ("array", "arguments of the script, such as ['--batch-size', '256']"),
    "folder": ("string", "folder to run the script in"),
    "device": ("array", "names of GPUs, such as T4; default: six GPUs"),
    "host": ("string", "machine around the GPUs: here, desktop, windows, cloud, colab or kaggle"),
    "measured": ("array", "speeds that you saw elsewhere, such as 'T4: 340 it/s'"),
    "steps": ("integer", "length of the training in steps"),
    "epochs": ("integer", "length of the training in epochs; instead of steps"),
    "deadline": ("string", "the training must end within this time, such as 8h"),
    "batch_size": ("integer", "train at this batch size, predicted from the recorded one"),
    "budget": ("number", "the training must cost at most these dollars"),
    "machines": ("string", "only these machines or GPUs: T4,g5.xlarge"),
    "time_limit": ("number", "end a run of the script after these seconds; default: 300"),
}
_OF_ALL = ("target", "script_arguments", "folder")
_RUNS = "Runs the script, if target is one; files that it writes are discarded."
# The description of each tool, and its options besides those of all.
_TOOLS = {
    "check": (
        f"Does a GPU pay off for this training script? Step time on each device. {_RUNS}",
        ("device", "host", "measured", "steps", "epochs", "time_limit"),
    ),
    "explain": (
        f"Why is the GPU (not) faster? Causes by line, with the gain of each fix. {_RUNS}",
        ("device", "host", "measured", "time_limit"),
    ),
    "cost": (
        f"Hours and dollars of the whole training, here and on rented machines. {_RUNS}",
        ("steps", "epochs", "batch_size", "deadline", "budget", "machines", "time_limit"),
    ),
    "normal": (
        f"Is this speed normal for that GPU, and if not, why? Needs measured. {_RUNS}",
        ("measured", "device", "host", "time_limit"),
    ),
}
# A script may change anything but files, and use the network.
_EFFECTS = types.ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True
)

Tell = Callable[[str], Awaitable[None]]
# Runs a command in a folder, None for the server's, and reports its progress.
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

    Raises:
        BreakevenError: The command failed; the message is its own.
    """
    command = [sys.executable, "-P", "-m", "breakeven", *arguments]
    process = await anyio.open_process(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=folder
    )
    said = "\n"
    try:
        assert process.stderr is not None
        async for text in TextReceiveStream(process.stderr, errors="replace"):
            said += text
            if "\nerror: " not in said:
                await tell(text.strip().rpartition("\n")[2])
        status = await process.wait()
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.terminate()
                with anyio.move_on_after(_END_LIMIT_S):
                    await process.wait()
            await process.aclose()  # kills what still runs
    if status:
        raise BreakevenError(said.partition("\nerror: ")[2].strip() or said[-1_000:].strip())


def build_server(run: Run = run_command) -> Server[Any]:
    """Return the server.

    Args:
        run: Runs a command; a test has its own.
    """
    turn = anyio.Lock()  # two runs at once would slow each other's measured step

    async def list_tools(_: _Context, __: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_tool(name) for name in _TOOLS])

    async def call_tool(
        context: _Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        heard: list[str] = []

        async def tell(line: str) -> None:
            heard.append(line)
            await context.session.report_progress(len(heard), None, line)

        name, arguments = f"{params.name}-{secrets.token_hex(4)}", params.arguments or {}
        path = _folder() / f"{name}.json"
        try:
            command = _command(params.name, arguments, path)
            folder = Path(arguments["folder"]) if arguments.get("folder") else None
            if folder is not None and not folder.is_dir():
                raise BreakevenError(f"there is no folder {folder}")
            _make_room()
            async with turn:
                await run(command, folder, tell)
            text, values = answer_of(read_document(path), uri=_URI + name, path=str(path))
        except BreakevenError as error:
            content = types.TextContent(type="text", text=_in_options(error.sentence))
            return types.CallToolResult(content=[content], is_error=True)
        link = types.ResourceLink(name=name, uri=_URI + name, mime_type="application/json")
        content = [types.TextContent(type="text", text=_in_options(text)), link]
        return types.CallToolResult(content=content, structured_content=values)

    async def list_resources(_: _Context, __: object) -> types.ListResourcesResult:
        names = [path.stem for path in _folder().glob("*.json")]
        return types.ListResourcesResult(
            resources=[types.Resource(name=name, uri=_URI + name) for name in names]
        )

    async def read_resource(
        _: _Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        try:
            text = to_json(read_document(_kept(params.uri))).decode()
        except BreakevenError as error:
            raise MCPError(types.INVALID_PARAMS, error.sentence) from error
        return types.ReadResourceResult(
            contents=[types.TextResourceContents(uri=params.uri, text=text)]
        )

    return Server(
        "breakeven",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
    )


def _tool(name: str) -> types.Tool:
    description, own = _TOOLS[name]
    properties: dict[str, Any] = {}
    for option in (*_OF_ALL, *own):
        kind, meaning = _OPTIONS[option]
        items = {"items": {"type": "string"}} if kind == "array" else {}
        properties[option] = {"type": kind, "description": meaning, **items}
    schema = {"type": "object", "properties": properties, "required": ["target"]}
    return types.Tool(name=name, description=description, input_schema=schema, annotations=_EFFECTS)


def _command(tool: str, arguments: Mapping[str, Any], path: Path) -> list[str]:
    """Return the command line of a call, which writes its report to a file.

    Raises:
        BreakevenError: There is no such tool, option or report, or the target is missing.
    """
    if tool not in _TOOLS:
        raise BreakevenError(f"there is no tool {tool!r}; there are: {', '.join(_TOOLS)}")
    own = _TOOLS[tool][1]
    for unknown in arguments.keys() - {*_OF_ALL, *own}:
        known = ", ".join((*_OF_ALL, *own))
        raise BreakevenError(f"{tool} has no option {unknown!r}; it has: {known}")
    target = str(arguments.get("target") or "")
    if not target or target.startswith("-"):
        raise BreakevenError(f"target must be a script or a report_uri, not {target!r}")
    if target.startswith(_URI):
        target = str(_kept(target))
        if tool == "check":
            hint = "pass it to explain, cost or normal, or pass the script"
            raise BreakevenError("a stored report is not checked again", hint=hint)
    rest = arguments.get("script_arguments") or []
    if not isinstance(rest, list):
        raise BreakevenError(f"script_arguments must be a list, not {rest!r}")
    # Joined by "=", so that a value cannot pass for another option.
    flags = [
        f"--{name.replace('_', '-')}={value}"
        for name in own
        for value in _listed(arguments.get(name))
    ]
    return [tool, *flags, "-o", str(path), target, *(["--", *map(str, rest)] if rest else [])]


def _in_options(text: str) -> str:
    """Return a text with the tool's options instead of the command's: ``time_limit``."""

    def named(flag: re.Match[str]) -> str:
        name = flag[1].replace("-", "_")
        return name if name in _OPTIONS else flag[0]

    return re.sub(r"(?<![\w-])--([a-z-]+)", named, text)


def _listed(value: Any) -> list[str]:
    if value is None:
        return []
    return [str(one) for one in value] if isinstance(value, list) else [str(value)]


def _folder() -> Path:
    return Path(platformdirs.user_cache_dir("breakeven")) / "reports"


def _kept(uri: str) -> Path:
    """Return the file of a report.

    Raises:
        BreakevenError: There is no such report.
    """
    name = uri.removeprefix(_URI)
    path = _folder() / f"{name}.json"
    if not re.fullmatch(r"[a-z]+-[0-9a-f]{8}", name) or not path.is_file():
        hint = f"run the script again; the last {_MAX_KEPT} reports are kept"
        raise BreakevenError(f"there is no report {uri}", hint=hint)
    return path


def _make_room() -> None:
    """Make the folder of the reports, and remove the oldest reports."""
    folder = _folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        for path in files[_MAX_KEPT - 1 :]:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise BreakevenError(f"cannot keep reports in {folder}: {error.strerror}") from error
