"""``breakeven sweep``: step times along any setting of a script, and the GPU's crossover."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from breakeven.cli.options import (
    add_comparison,
    add_force,
    add_output,
    add_run,
    add_target,
    session_options,
)
from breakeven.cli.output import ensure_files, json_hint, print_report, write_report
from breakeven.errors import BreakevenError, UsageError

if TYPE_CHECKING:
    from breakeven.studies import SweepProgress
    from breakeven.verdict import SweepReport

SUMMARY = "find the batch size, width, ... from which a GPU pays off"
DESCRIPTION = """\
Run an unmodified training script along one or more of its knobs, and show the value
from which a GPU is faster, at all larger ones too. The CPU is measured at the points
that the answer needs, and at every text or fraction. GPUs are predicted from a few
traced runs, or measured if this machine has them.

NAME is batch_size (of the script's DataLoader), threads (of torch on the CPU),
num_devices (GPUs that share the work), or anything that stands as {NAME} in the
arguments after --, where {{ and }} are braces. VALUES is one of

  16..65536       doubling: 16, 32, 64, ... 65536
  2..12+1         in steps of 1; 0.1..0.5+0.1 in steps of 0.1
  1..1000*3       times 3: 1, 3, 9, ... and 1000
  1,2,4  or  relu,tanh    these values; lr=0.1,0.01 too

Measurements are kept: after Ctrl-C, the same command continues."""
USAGE = "sweep TARGET --over NAME=VALUES [options] [-- ARGS ...]"
EXAMPLES = """\
examples:
  breakeven sweep train.py --over batch_size=16..65536
  breakeven sweep train.py --over width=32..2048 -- --width={width}
  breakeven sweep train.py --over batch_size=16..4096 --over threads=1,2
  breakeven sweep train.py --over depth=2..12+1 --device T4 --chart depth.html \\
      -- --depth {depth}"""


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``sweep``."""
    add_target(parser)
    parser.add_argument(
        "--over",
        metavar="NAME=VALUES",
        action="append",
        required=True,
        help="vary this; given again, every combination is a point of the grid, and curves "
        "are along the first",
    )
    add_comparison(parser)
    parser.add_argument(
        "--strategy",
        metavar="ddp|data_parallel",
        choices=("ddp", "data_parallel"),
        default="ddp",
        help="how several GPUs share the work: DistributedDataParallel or nn.DataParallel "
        "(default: ddp)",
    )
    add_run(parser)
    parser.add_argument("--fresh", action="store_true", help="repeat stored measurements")
    parser.add_argument(
        "--engine",
        metavar="local|ray",
        choices=("local", "ray"),
        default="local",
        help="where to measure: on this machine, or on a Ray cluster (default: local)",
    )
    parser.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="the cluster, such as 10.0.0.1:6379 (default: RAY_ADDRESS, or else the one that this "
        "machine belongs to)",
    )
    parser.add_argument(
        "--machine",
        metavar="KIND",
        help="measure only on nodes of the cluster that carry this custom resource",
    )
    add_output(parser)
    parser.add_argument(
        "--chart",
        metavar="FILE",
        type=Path,
        help="also draw the curves to FILE: .html (to explore in a browser) or .svg",
    )
    add_force(parser, "-o and --chart replace files")


def run(args: argparse.Namespace) -> int:
    """Sweep the target, show the report, and write it if requested."""
    if args.engine != "ray":
        for option, value in (("--ray-address", args.ray_address), ("--machine", args.machine)):
            if value is not None:
                raise UsageError(f"{option} is about a Ray cluster", hint="add --engine ray")
    if args.chart is not None:
        from breakeven.report import ensure_chart_suffix

        ensure_chart_suffix(args.chart.suffix)
    ensure_files({"-o FILE": args.output, "--chart FILE": args.chart}, args)

    # Imported here, since --help must not wait for torch and rich.
    from breakeven.cli.progress import show_progress

    try:
        with show_progress(sys.stderr, is_quiet=args.quiet) as progress:
            report = _sweep(args, progress)
    except KeyboardInterrupt:
        same = "the same command without --fresh" if args.fresh else "the same command"
        sys.stderr.write(f"Measurements are kept: {same} continues from there.\n")
        raise
    print_report(
        report,
        args,
        write=_write_files,
        hints=lambda: next_hints(report, args),
    )
    if not report.points:
        raise BreakevenError(
            "no point of the grid gave an answer", hint="the report names the reason of each"
        )
    return 0


def _sweep(args: argparse.Namespace, progress: SweepProgress) -> SweepReport:
    from breakeven.simulate import Strategy
    from breakeven.studies import parse_axis, sweep_target

    axes = tuple(parse_axis(text) for text in args.over)
    options = session_options(args)
    # On this machine the driver creates its own engine.
    used = nullcontext()
    if args.engine == "ray":
        from breakeven.studies import RayEngine

        used = RayEngine(
            address=args.ray_address,
            machine=args.machine or "",
            keep=options["keep"],
            progress=progress,
        )
    with used as engine:
        return sweep_target(
            args.target,
            axes=axes,
            engine=engine,
            strategy=Strategy(args.strategy),
            is_fresh=args.fresh,
            progress=progress,
            **options,
        )


def _write_files(report: SweepReport, args: argparse.Namespace) -> None:
    from breakeven.report import chart_document
    from breakeven.store import write_document

    write_report(report, args)
    if args.chart is not None and report.points:
        chart = chart_document(report, args.chart.suffix)
        write_document(args.chart, chart, force=args.force)


def next_hints(report: SweepReport, args: argparse.Namespace) -> tuple[str, ...]:
    """Return the next commands, given the answer and the flags in use."""
    hints: list[str] = []
    if report.points and not args.devices:
        hints.append("Other GPUs: --device NAME (all names: breakeven devices)")
    if report.points:
        explore = "The curves to explore in a browser: --chart sweep.html"
        hints.append(explore if args.chart is None else f"The curves: {args.chart}")
    return (*hints, json_hint(args, "sweep.json"))
