"""``breakeven devices``: the GPUs that breakeven knows, and what it knows about one."""

from __future__ import annotations

import argparse

SUMMARY = "list the GPUs that breakeven can predict, one of them in full, or hosts"
DESCRIPTION = """\
List the catalogue of GPUs, or show one of them with the sources of its figures.
Peak rates are dense: no structured sparsity. With --hosts, list the CPUs that may
feed them, by how fast one of their cores runs Python and torch's dispatcher."""
USAGE = "devices [NAME] [--hosts] [--json]"
EXAMPLES = """\
examples:
  breakeven devices
  breakeven devices a100
  breakeven devices --hosts epyc-7763"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``devices``."""
    parser.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        help="one device in full; case, spaces and hyphens do not matter",
    )
    parser.add_argument(
        "--hosts", action="store_true", help="hosts instead of GPUs; NAME is a CPU then"
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON, in bytes, FLOP/s and bytes/s"
    )


def run(args: argparse.Namespace) -> int:
    """Show the catalogue or one device, or the same of hosts."""
    if args.hosts:
        return _show_hosts(args)
    # Imported here, since --help must not wait for the catalogue and rich.
    from breakeven.cli.console import CommandConsole
    from breakeven.cli.output import write_stdout
    from breakeven.device import find_device, load_catalogue
    from breakeven.report import device_document, devices_document, render, stored_devices, to_json

    one = None if args.name is None else find_device(args.name)
    if args.json:
        devices = load_catalogue() if one is None else (one,)
        write_stdout(to_json(stored_devices(devices)))
    elif one is None:
        render(devices_document(load_catalogue()), CommandConsole())
    else:
        render(device_document(one), CommandConsole())
    return 0


def _show_hosts(args: argparse.Namespace) -> int:
    from breakeven.cli.console import CommandConsole
    from breakeven.cli.output import write_stdout
    from breakeven.device import find_host_cpu, load_host_cpus
    from breakeven.report import hosts_document, render, stored_hosts, to_json

    cpus = load_host_cpus() if args.name is None else (find_host_cpu(args.name),)
    if args.json:
        write_stdout(to_json(stored_hosts(cpus)))
    else:
        render(hosts_document(cpus), CommandConsole())
    return 0
