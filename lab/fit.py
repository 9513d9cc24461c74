"""Fit the files that predictions rest on, each from public measurements.

    python -m lab.fit efficiency TABLES -o efficiency.json
    python -m lab.fit steps TABLE.csv ... [--own TABLE.csv ...] -o step_effects.json
    python -m lab.fit multi-gpu TABLE.csv ... -o multi_gpu.json
    python -m lab.fit errors

Fit them in this order: each rests on the file before it, as it is installed: the first two in
`src/breakeven/cost`, the last in `src/breakeven/simulate`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from breakeven.cli.progress import show_progress
from breakeven.cost import EfficiencyTable, StepEffects, load_efficiencies
from breakeven.errors import BreakevenError
from breakeven.simulate import MultiGpuTable
from breakeven.store import ensure_writable, lined_json, write_document
from breakeven.validate import read_table
from lab.efficiency import describe_efficiencies, fit_efficiencies
from lab.multi_gpu import calibrate_on_shared_steps, describe_multi_gpu
from lab.step_effects import calibrate_on_steps, describe_step_effects

_COMMAND = "python -m lab.fit"
_FINGERPRINTS_PER_LINE = 7


def step_effects_document(effects: StepEffects) -> bytes:
    """Encode effects for ``cost/step_effects.json``, one per line."""
    rows = _fingerprint_rows(effects.calibrated_on)
    return lined_json(effects, {"effects": effects.effects, "calibrated_on": rows})


def multi_gpu_document(table: MultiGpuTable) -> bytes:
    """Encode the costs of several GPUs for ``simulate/multi_gpu.json``."""
    rows = _fingerprint_rows(table.calibrated_on)
    return lined_json(table, {"held_out": table.held_out, "calibrated_on": rows})


def efficiencies_document(table: EfficiencyTable) -> bytes:
    """Encode a table for ``cost/efficiency.json``."""
    return msgspec.json.format(msgspec.json.encode(table), indent=1) + b"\n"


def _fingerprint_rows(fingerprints: Sequence[str]) -> list[bytes]:
    encoded = [msgspec.json.encode(fingerprint) for fingerprint in fingerprints]
    starts = range(0, len(encoded), _FINGERPRINTS_PER_LINE)
    return [b", ".join(encoded[start : start + _FINGERPRINTS_PER_LINE]) for start in starts]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=_COMMAND, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    for name, table, does in (
        ("efficiency", "TABLES", "what GPUs reach of their datasheets, from timed operators"),
        ("steps", "TABLE.csv", "what differs within whole steps, from those on one GPU"),
        ("multi-gpu", "TABLE.csv", "what steps on several GPUs cost beyond those on one"),
    ):
        command = commands.add_parser(name, help=does, description=f"Fit {does} (minutes).")
        is_folder = name == "efficiency"
        command.add_argument(
            "tables",
            metavar=table,
            type=Path,
            nargs=1 if is_folder else "+",
            help="folder of tables of timed operators (CONTRIBUTING.md lists them)"
            if is_folder
            else "table in the form of `breakeven validate`",
        )
        if name == "steps":
            command.add_argument(
                "--own",
                metavar="TABLE.csv",
                type=Path,
                nargs="+",
                default=[],
                help="rows that teach what is peculiar to their GPUs, and no more",
            )
        command.add_argument("-o", "--output", metavar="FILE", type=Path, required=True)
        command.add_argument("--force", action="store_true", help="replace FILE")
        command.add_argument("-q", "--quiet", action="store_true", help="show no progress")
    commands.add_parser("errors", help="print the errors of the efficiencies that ship")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Fit the requested file, write it, and print a summary; return 1 or more on an error."""
    args = _parser().parse_args(argv)
    try:
        if args.what == "errors":
            sys.stdout.write(describe_efficiencies(load_efficiencies()))
            return 0
        ensure_writable(args.output, force=args.force)
        with show_progress(sys.stderr, is_quiet=args.quiet) as progress:
            if args.what == "efficiency":
                efficiencies = fit_efficiencies(args.tables[0])
                fitted = efficiencies_document(efficiencies), describe_efficiencies(efficiencies)
            elif args.what == "steps":
                rows, own = read_table(*args.tables), read_table(*args.own)
                effects = calibrate_on_steps(
                    rows, own, command=f"{_COMMAND} steps", progress=progress
                )
                fitted = step_effects_document(effects), describe_step_effects(effects)
            else:
                costs = calibrate_on_shared_steps(
                    read_table(*args.tables), command=f"{_COMMAND} multi-gpu", progress=progress
                )
                fitted = multi_gpu_document(costs), describe_multi_gpu(costs)
        write_document(args.output, fitted[0], force=args.force)
    except BreakevenError as error:
        sys.stderr.write(f"error: {error.sentence}\n")
        return error.exit_code
    sys.stdout.write(fitted[1])
    return 0


if __name__ == "__main__":
    sys.exit(main())
