"""``breakeven devices``: the catalogue of GPUs, or one GPU in full."""

from __future__ import annotations

import argparse
import operator
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from breakeven.device import DeviceSpec

SUMMARY = "list the GPUs that breakeven can predict, one of them in full, or hosts"
DESCRIPTION = """\
List the catalogue of GPUs, or show one of them with the sources of its figures.
Peak rates are dense: no structured sparsity. With --hosts, list host machines
and CPUs by how fast they issue work, with your own speeds (check --measured)."""
USAGE = "devices [NAME] [--vendor NAME] [--generation NAME] [--memory SIZE] [--hosts] [--json]"
EXAMPLES = """\
examples:
  breakeven devices
  breakeven devices a100
  breakeven devices --vendor nvidia --generation ada --memory ">= 24GB"
  breakeven devices --hosts epyc-7763"""
_COMPARED = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}
_MEMORY = re.compile(r"\s*(>=|<=|>|<|=)?\s*(\d+(?:\.\d+)?)\s*(?:g|gb|gib)?\s*", re.IGNORECASE)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``devices``."""
    parser.add_argument(
        "name",
        metavar="NAME",
        nargs="?",
        help="one device in full; case, spaces and hyphens do not matter",
    )
    parser.add_argument("--vendor", metavar="NAME", help="GPUs of nvidia, amd, apple or intel only")
    parser.add_argument(
        "--generation", metavar="NAME", help="GPUs of one architecture only: ampere, cdna3, m2"
    )
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        help='GPUs with this much memory only: 24GB or ">= 24GB" for at least that, "= 24GB", '
        '"< 12GB"',
    )
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
    from breakeven.errors import UsageError
    from breakeven.report import (
        device_document,
        devices_document,
        hosts_document,
        stored_devices,
        stored_hosts,
    )

    if (args.hosts or args.name) and (args.vendor or args.generation or args.memory):
        raise UsageError(
            "--vendor, --generation and --memory filter the list of GPUs",
            hint="leave out NAME and --hosts",
        )
    if args.hosts:
        cpus = load_host_cpus() if args.name is None else (find_host_cpu(args.name),)
        kinds = tuple(map(as_measured, load_host_kinds())) if args.name is None else ()
        print_sheets(stored_hosts(cpus, kinds), hosts_document(cpus, kinds), is_json=args.json)
    elif args.name is None:
        devices = _filtered(load_catalogue(), args)
        print_sheets(stored_devices(devices), devices_document(devices), is_json=args.json)
    else:
        device = find_device(args.name)
        print_sheets(stored_devices((device,)), device_document(device), is_json=args.json)
    return 0


def _filtered(devices: Sequence[DeviceSpec], args: argparse.Namespace) -> Sequence[DeviceSpec]:
    """Return the devices that pass every filter; raise if a filter is wrong or none passes."""
    from breakeven.errors import BreakevenError, UsageError
    from breakeven.units import BYTES_PER_GIB

    shown = devices
    for option, asked, fields in (
        ("--vendor", args.vendor, ("vendor",)),
        ("--generation", args.generation, ("architecture", "launch_generation")),
    ):
        known = {getattr(one, field).lower() for one in devices for field in fields}
        if asked is not None and asked.lower() not in known:
            raise UsageError(
                f"no GPU of the catalogue has the {option[2:]} {asked!r}",
                hint=f"{option} takes {', '.join(sorted(known))}",
            )
        shown = [
            one
            for one in shown
            if asked is None or asked.lower() in {getattr(one, field).lower() for field in fields}
        ]
    if args.memory is not None:
        size = _MEMORY.fullmatch(args.memory)
        if size is None:
            raise UsageError(
                f"--memory takes a size in GB, not {args.memory!r}", hint='--memory ">= 24GB"'
            )
        passes = _COMPARED[size[1] or ">="]
        # GPU memory comes in GiB, even if it is labelled GB.
        shown = [one for one in shown if passes(one.memory_bytes, float(size[2]) * BYTES_PER_GIB)]
    if not shown:
        raise BreakevenError(
            "no GPU of the catalogue passes all filters", hint="leave out one of them"
        )
    return shown
