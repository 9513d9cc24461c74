"""``breakeven devices``: the catalogue of GPUs, or one GPU in full."""

from __future__ import annotations

import argparse

from breakeven.cli.options import complete_devices

SUMMARY = "list the GPUs that breakeven can predict, one of them in full, or hosts"
DESCRIPTION = """\
List the catalogue of GPUs, or show one of them with the sources of its figures.
Peak rates are dense: no structured sparsity. With --hosts, list host machines
and CPUs by how fast they issue work, with your own speeds (check --measured)."""
USAGE = "devices [NAME] [--hosts] [--json]"
EXAMPLES = """\
examples:
  breakeven devices
  breakeven devices a100
  breakeven devices --hosts epyc-7763"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``devices``."""
    name = parser.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        help="one device in full; case, spaces and hyphens do not matter",
    )
    complete_devices(name)
    parser.add_argument(
        "--hosts", action="store_true", help="hosts instead of GPUs; NAME is a CPU then"
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON, in bytes, FLOP/s and bytes/s"
    )


def run(args: argparse.Namespace) -> int:
    """Show the catalogue or one device, or the same for hosts."""
    # Imported here, since --help must not wait for the catalogue and rich.
    from breakeven.calibrate import as_measured
    from breakeven.cli.output import print_sheets
    from breakeven.device import (
        find_device,
        find_host_cpu,
        load_catalogue,
        load_host_cpus,
        load_host_kinds,
    )
    from breakeven.report import (
        device_document,
        devices_document,
        hosts_document,
        stored_devices,
        stored_hosts,
    )

    if args.hosts:
        cpus = load_host_cpus() if args.name is None else (find_host_cpu(args.name),)
        kinds = tuple(map(as_measured, load_host_kinds())) if args.name is None else ()
        print_sheets(stored_hosts(cpus, kinds), hosts_document(cpus, kinds), is_json=args.json)
    elif args.name is None:
        devices = load_catalogue()
        print_sheets(stored_devices(devices), devices_document(devices), is_json=args.json)
    else:
        device = find_device(args.name)
        print_sheets(stored_devices((device,)), device_document(device), is_json=args.json)
    return 0
