"""An MCP server: the answers of breakeven for coding agents."""

from typing import TYPE_CHECKING

from breakeven.lazy import exported_on_use

if TYPE_CHECKING:
    from breakeven.mcp_server.answer import MAX_CHARACTERS as MAX_CHARACTERS
    from breakeven.mcp_server.answer import Answer as Answer
    from breakeven.mcp_server.answer import answer_of as answer_of
    from breakeven.mcp_server.answer import answer_text as answer_text
    from breakeven.mcp_server.server import build_server as build_server
    from breakeven.mcp_server.server import run_command as run_command
    from breakeven.mcp_server.server import serve as serve

__getattr__ = exported_on_use(__name__)
