"""The command line: one module per command."""

from breakeven.cli._main import entry_point as entry_point
from breakeven.cli._main import main as main
