"""``breakeven cost``: hours, money and energy of a training on each machine."""

from __future__ import annotations

import argparse
import datetime
import math
import sys
from functools import partial
from pathlib import Path

from breakeven.cli.options import (
    add_force,
    add_module,
    add_output,
    add_run,
    add_target,
    comma_names,
    duration_s,
    is_stored_run,
    run_options,
    whole_number,
)
from breakeven.cli.output import (
    ensure_files,
    exit_code,
    json_hint,
    print_report,
    write_report,
    write_stdout,
)
from breakeven.errors import UsageError

SUMMARY = "show how long a training takes and what it costs, on each machine"
DESCRIPTION = """\
Run an unmodified training script for some steps, and show the hours, the money and
the energy of the whole training: on this machine, and on machines that are rented.
TARGET is a script, or the file that check wrote with -o, which is priced without a
run."""
USAGE = "cost TARGET|RUN.json --steps N|--epochs N [options] [-- ARGS ...]"
EXAMPLES = """\
examples:
  breakeven cost train.py --epochs 90
  breakeven cost train.py --steps 100000 --deadline 8h --budget 20
  breakeven cost run.json --steps 1000000 --machines T4,g5.xlarge
  breakeven cost run.json --epochs 10 --clouds hf --until 07:30
  breakeven cost run.json --epochs 10 --batch-size 256
  breakeven cost train.py --epochs 10 --format hf -- --lr 0.1"""
# More dollars are a typing error, and would overflow.
_MOST_AMOUNT = 1e9


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``cost``."""
    add_target(parser, "; or a RUN.json that check wrote")
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--steps", metavar="N", type=whole_number, help="length of the training in steps"
    )
    length.add_argument(
        "--epochs",
        metavar="N",
        type=whole_number,
        help="length in passes over the data of the script's DataLoader",
    )
    parser.add_argument(
        "--batch-size",
        metavar="N",
        type=whole_number,
        help="train at N samples per step, predicted from the recorded size (default: that size)",
    )
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument(
        "--deadline",
        metavar="TIME",
        type=duration_s,
        help="the training must end within TIME: 8h, 1h30m",
    )
    limit.add_argument(
        "--until",
        metavar="HH:MM",
        type=_until_s,
        help="the training must end by then: 07:30, or 2026-03-01T07:30",
    )
    add = parser.add_argument
    usd = {"metavar": "USD", "type": _amount}
    add("--budget", **usd, help="it must cost at most USD dollars")
    add(
        "--max-usd",
        **usd,
        help="exit with 1 if the cheapest rented machine costs more, over its whole interval",
    )
    add("--strict", action="store_true", help="with --max-usd: a part of the interval suffices")
    names = {"metavar": "NAME,...", "type": comma_names, "default": ()}
    add(
        "--machines",
        **names,
        help="only these: names of machines or GPUs, or cpu (all: breakeven prices)",
    )
    add("--clouds", **names, help="only these providers: aws, gcp, azure, hf")
    add(
        "--num-gpus",
        metavar="N,...",
        type=_numbers,
        default=(1,),
        help="numbers of GPUs of one machine that divide the batch: 1,2,4,8 (default: 1)",
    )
    add(
        "--batch-per-gpu",
        action="store_true",
        help="with --num-gpus: each GPU keeps the script's batch, and there are fewer steps",
    )
    add(
        "--price",
        metavar="NAME=USD",
        type=_price,
        action="append",
        default=[],
        help="your own price of a machine per hour: g5.xlarge=0.40; may be repeated",
    )
    add(
        "--prices",
        metavar="FILE",
        type=Path,
        help="your own list of machines, as breakeven prices --json prints it",
    )
    add(
        "--power-price",
        metavar="USD",
        type=partial(_amount, may_be_zero=True),
        default=0.0,
        help="dollars per kWh of this machine (default: it is free)",
    )
    add(
        "--grid",
        metavar="KG",
        type=partial(_amount, may_be_zero=True),
        help="kg of CO2 per kWh of electricity (default: that of each machine's region)",
    )
    add(
        "--setup",
        metavar="TIME",
        type=partial(duration_s, may_be_zero=True),
        help="time to start a rented machine, load the software and copy the data (default: 4m, "
        "1.5 to 10)",
    )
    add(
        "--format",
        choices=("hf", "sky"),
        help="print the job for the cheapest clearly faster machine instead: hf, a command of HF "
        "Jobs; sky, a file for SkyPilot",
    )
    add_module(parser)
    add_run(parser)
    add_output(parser, "costs")
    add_force(parser, "-o replace FILE")


def run(args: argparse.Namespace) -> int:
    """Price the training, show the report, and write it if requested."""
    ensure_files({"-o FILE": args.output}, args)
    if args.strict and args.max_usd is None:
        raise UsageError("--strict is about --max-usd, which was not given")
    if args.format and args.json:
        raise UsageError("--format and --json both print to stdout", hint="pass one of them")

    clouds = tuple(cloud.lower() for cloud in args.clouds)

    # Imported here, since --help must not wait for torch and rich.
    from breakeven.cli.progress import show_progress
    from breakeven.money import Interval, known_prices, read_prices
    from breakeven.report import JOB_CLOUDS, Condition, cheapest_figure, job_text
    from breakeven.studies import SETUP_S, CostRequest, TrainingLength, cost_run, cost_target

    if args.format and not {*clouds} <= {*JOB_CLOUDS[args.format]}:
        raise UsageError(
            f"--format {args.format} is for {', '.join(JOB_CLOUDS[args.format])} alone",
            hint="pass another --format, or other --clouds",
        )
    setup = args.setup
    request = CostRequest(
        length=TrainingLength(num_steps=args.steps, num_epochs=args.epochs),
        machines=args.machines,
        clouds=clouds or JOB_CLOUDS.get(args.format, ()),
        usd_per_hour=dict(args.price),
        prices=read_prices(args.prices) if args.prices else known_prices(),
        deadline_s=args.deadline or args.until,
        budget_usd=args.budget,
        power_usd_per_kwh=args.power_price,
        grid_kg_per_kwh=args.grid,
        num_gpus=args.num_gpus,
        keeps_global_batch=not args.batch_per_gpu,
        batch_size=args.batch_size,
        setup_s=SETUP_S if setup is None else Interval(value=setup, low=setup, high=setup),
    )
    if is_stored_run(args.target) and not args.is_module:
        if args.script_arguments and not args.format:
            raise UsageError(
                f"{args.target} is a stored run: nothing after -- can reach its script"
            )
        report = cost_run(args.target, request)
    else:
        with show_progress(sys.stderr, is_quiet=args.quiet) as progress:
            report = cost_target(args.target, request, progress=progress, **run_options(args))
    if args.format:
        write_report(report, args)
        write_stdout(job_text(report, args.format, args.script_arguments).encode())
        if args.format == "hf":
            sys.stderr.write("IMAGE: a Docker image with torch and the script\n")
        if args.batch_size:
            sys.stderr.write(f"The script must set batch size {args.batch_size} itself\n")
    else:
        print_report(
            report,
            args,
            write=write_report,
            hints=lambda: (
                "One provider or machine: --clouds NAME, --machines NAME (all: breakeven prices)",
                json_hint(args, "cost.json", "machine"),
            ),
        )
    if args.max_usd is None:
        return 0
    limit = Condition(text=f"--max-usd {args.max_usd:g}", subject="cost", limit=args.max_usd)
    return exit_code((limit,), lambda _: (cheapest_figure(report),), args)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(sorted({whole_number(part.strip()) for part in text.split(",")}))


def _amount(text: str, *, may_be_zero: bool = False) -> float:
    try:
        value = float(text.removeprefix("$"))
    except ValueError:
        value = math.nan
    if not (0 < value <= _MOST_AMOUNT or (may_be_zero and value == 0)):
        least = "of at least 0" if may_be_zero else "above 0"
        most = f"{_MOST_AMOUNT:,.0f}"
        raise argparse.ArgumentTypeError(f"{text!r} is not a number {least}, up to {most}")
    return abs(value)  # -0 is 0


def _price(text: str) -> tuple[str, float]:
    name, equals, price = text.rpartition("=")
    if not (equals and name):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=USD, such as g5.xlarge=0.40")
    return name, _amount(price)


def _until_s(text: str) -> float:
    """Return the seconds until a time of day, today or tomorrow, or until a date and time."""
    now = datetime.datetime.now().astimezone()
    try:
        if "T" in text or " " in text:
            end = datetime.datetime.fromisoformat(text).astimezone()
        else:
            time, today = datetime.time.fromisoformat(text), now.date()
            days = (today, today + datetime.timedelta(days=1))
            ends = (datetime.datetime.combine(day, time).astimezone() for day in days)
            end = next(end for end in ends if end > now)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time, such as 07:30 or 2026-03-01T07:30"
        ) from None
    if end <= now:
        raise argparse.ArgumentTypeError(f"{text} is in the past")
    return (end - now).total_seconds()
