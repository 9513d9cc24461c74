"""The command line: one module per command."""

from breakeven.cli.dispatch import entry_point as entry_point
from breakeven.cli.dispatch import main as main
