"""``breakeven prices``: machines for rent."""

from __future__ import annotations

import argparse
from datetime import date
from pathlib import Path

from breakeven.cli.options import comma_names
from breakeven.errors import UsageError

SUMMARY = "list machines for rent with their prices"
DESCRIPTION = """\
List machines that you can rent by the hour, cheapest first. Without NAME: the
cheapest machine of each GPU and of each CPU."""
USAGE = "prices [NAME ...] [--clouds NAMES] [--prices FILE] [--refresh] [--json]"
EXAMPLES = """\
examples:
  breakeven prices
  breakeven prices h100 p4d.24xlarge
  breakeven prices cpu --clouds aws,gcp"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``prices``."""
    add = parser.add_argument
    add(
        "names",
        metavar="NAME",
        nargs="*",
        help="a machine, a GPU (all: breakeven devices), or cpu for machines without a GPU",
    )
    add(
        "--clouds",
        metavar="NAME,...",
        type=comma_names,
        default=(),
        help="only these providers: aws, gcp, azure, hf (Hugging Face Jobs)",
    )
    add("--prices", metavar="FILE", type=Path, help="use a price file of your own instead")
    add(
        "--refresh",
        action="store_true",
        help="first fetch current prices and keep them; needs a network and breakeven[prices]",
    )
    add("--json", action="store_true", help="print a price file; without NAME, of all machines")


def run(args: argparse.Namespace) -> int:
    """Show machines, after a refresh if wanted."""
    # Imported here, since --help must not wait for the catalogue and rich.
    from breakeven.cli.output import print_sheets, say
    from breakeven.money import known_prices, read_prices, select_machines
    from breakeven.report import cheapest_machines, prices_document

    if args.refresh:
        from breakeven.store import refresh_prices

        if args.prices:
            raise UsageError("--refresh renews breakeven's own prices: omit --prices")
        say(f"{refresh_prices()} has the current prices", is_quiet=False)
    everything = read_prices(args.prices) if args.prices else known_prices()
    prices = everything.with_machines(select_machines(everything, args.names, args.clouds))
    shown, legend = prices, "All prices with more digits: --json"
    if not args.names:
        shown = cheapest_machines(prices)
        legend = (
            f"The cheapest of each GPU and CPU, out of {len(prices.machines)} machines.\n"
            "All machines with a GPU, or without one: breakeven prices NAME, or cpu"
        )
    if not args.prices:
        legend += "\nCurrent prices: breakeven prices --refresh"
    print_sheets(prices, prices_document(shown, date.today(), legend), is_json=args.json)
    return 0
