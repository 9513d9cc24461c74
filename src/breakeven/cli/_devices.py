"""``breakeven devices``: the GPUs that breakeven knows, and what it knows about one."""

from __future__ import annotations

import argparse

SUMMARY = "list the GPUs that breakeven can predict, or one of them in full"
DESCRIPTION = """\
List the catalogue of GPUs, or show one of them with the sources of its figures.
Peak rates are dense: no structured sparsity."""
USAGE = "devices [NAME] [--json]"
EXAMPLES = """\
examples:
  breakeven devices
  breakeven devices a100"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``devices``."""
    parser.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        help="one device in full; case, spaces and hyphens do not matter",
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON, in bytes, FLOP/s and bytes/s"
    )


def run(args: argparse.Namespace) -> int:
    """Show the catalogue or one device."""
    # Imported here, since --help must not wait for the catalogue and rich.
    from breakeven.cli._console import CommandConsole
    from breakeven.cli._output import write_stdout
    from breakeven.device import find_device, load_catalogue
    from breakeven.report import devices_to_json, render_device, render_devices

    one = None if args.name is None else find_device(args.name)
    if args.json:
        write_stdout(devices_to_json(load_catalogue() if one is None else (one,)))
    elif one is None:
        render_devices(load_catalogue(), CommandConsole())
    else:
        render_device(one, CommandConsole())
    return 0
