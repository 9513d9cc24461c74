"""An argument parser whose mistakes are our errors and whose help reads alike on every Python."""

from __future__ import annotations

import argparse
from typing import NoReturn

from breakeven.errors import UsageError


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help with line breaks kept, and ``-o, --output FILE`` as Python 3.13 and later write it."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        metavar = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {metavar}"


class Parser(argparse.ArgumentParser):
    """A parser that raises ``UsageError`` where argparse would print and exit."""

    def error(self, message: str) -> NoReturn:
        """Raise ``UsageError`` with what is wrong, and where the help is."""
        raise UsageError(message, hint=f"see: {self.prog} --help")
