"""``breakeven mcp``: serve coding agents over the Model Context Protocol."""

from __future__ import annotations

import argparse

from breakeven.errors import BreakevenError

SUMMARY = "serve check, explain, cost and normal to coding agents (MCP)"
DESCRIPTION = """\
Serve the tools check, explain, cost and normal to a coding agent by the Model
Context Protocol over stdin and stdout. The agent starts this command; see
docs/agents.md. Scripts run on this machine, and no code leaves it. Needs:
pip install "breakeven[mcp]"."""
USAGE = "mcp"
EXAMPLES = """\
example, for Claude Code:
  claude mcp add breakeven -- breakeven mcp"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add no option: the agent passes all of them with its calls."""


def run(args: argparse.Namespace) -> int:
    """Serve until stdin ends."""
    try:
        # Imported here, since the SDK is an extra.
        from breakeven.cli.mcp_server import serve
    except ImportError as error:
        raise BreakevenError(
            f"breakeven mcp needs the Python SDK of MCP, version 2.3 or later: {error}",
            hint='pip install "breakeven[mcp]"',
        ) from error
    serve()
    return 0
