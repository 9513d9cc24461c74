"""Which public training scripts `breakeven check` and `explain` answer, on faked data.

docs/public-scripts.md tells what was found. No repository is part of this one: clone those of the
table (``--list`` names them) into FOLDER/owner/name first, and run this in an environment that has
breakeven's dependencies and what the scripts import.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import msgspec
from public_runs import COMMANDS, Limits, Outcome, Runner, end_all, is_over
from public_table import Script, Table, TableError, read_tables

TABLE = Path(__file__).with_name("public_scripts.toml")
ERROR_WIDTH = 110
EPILOG = """\
A script that fails by itself is not asked about. Data are random, in the formats that the
scripts read. Exit codes: 0 every script that runs by itself was answered, 1 some were not,
2 wrong command line or table.

examples:
  python benchmarks/public_scripts.py --list
  python benchmarks/public_scripts.py ~/repositories --json found.json
  python benchmarks/public_scripts.py ~/repositories --only nanogpt --only makemore --keep /tmp/kept
  python benchmarks/public_scripts.py ~/repositories --json found.json --resume
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the rows that are asked for, and print a table of what became of them."""
    parser = build_parser()
    options = parser.parse_args(argv)
    try:
        table = read_tables(options.table or [TABLE])
        scripts = chosen(table, options.only)
        earlier = read_outcomes(options.json) if options.resume else {}
    except TableError as error:
        parser.error(str(error))
    if options.list:
        print_repositories(table, scripts)
        return 0
    if options.folder is None:
        parser.error("FOLDER is missing: where the repositories are")
    if not options.folder.is_dir():
        parser.error(f"there is no folder {options.folder}")
    if options.resume and options.json is None:
        parser.error("--resume needs the --json FILE of the run that is resumed")
    source = options.breakeven_source
    if source is not None and not (source / "src" / "breakeven").is_dir():
        parser.error(f"there is no {source}/src/breakeven")
    runner = Runner(
        repositories=options.folder.resolve(),
        source=source.resolve() if source else None,
        commands=tuple(options.command or COMMANDS),
        limits=Limits(
            native=options.native_seconds, command=options.time_limit, run=options.run_limit
        ),
        packages=options.packages.resolve() if options.packages else None,
        kept=options.keep.resolve() if options.keep else None,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        outcomes = run_all(runner, scripts, earlier, options.jobs, options.json)
    except KeyboardInterrupt:
        print("interrupted; --json FILE --resume goes on", file=sys.stderr)
        return 130
    print(summary(outcomes))
    return 0 if all(outcome.is_answered for outcome in outcomes if outcome.is_native) else 1


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python benchmarks/public_scripts.py",
        description="Run public training scripts by themselves and under breakeven, on faked data.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("folder", metavar="FOLDER", nargs="?", type=Path, help="where owner/name are checked out")
    add(
        "--table",
        metavar="FILE",
        type=Path,
        action="append",
        help="rows (public_scripts.toml); may be repeated",
    )
    add(
        "--only",
        metavar="NAME",
        action="append",
        help="rows of this name, or that begin with NAME-; may be repeated",
    )
    add("--command", choices=COMMANDS, action="append", help="ask this one alone")
    add(
        "--breakeven-source",
        metavar="TREE",
        type=Path,
        help="use TREE/src instead of the breakeven installed",
    )
    add(
        "--packages",
        metavar="DIR",
        type=Path,
        help="for rows with packages of their own: DIR/NAME, made by pip install --target",
    )
    add("--json", metavar="FILE", type=Path, help="also write outcomes to FILE, after each row")
    add("--resume", action="store_true", help="leave out the rows that FILE of --json has")
    add(
        "--jobs",
        metavar="N",
        type=int,
        default=1,
        help="rows at a time; their times then disturb each other (1)",
    )
    add(
        "--native-seconds",
        metavar="S",
        type=float,
        default=40,
        help="a script that still runs then is taken to train (40)",
    )
    add("--time-limit", metavar="S", type=float, default=900, help="of each command (900)")
    add(
        "--run-limit",
        metavar="S",
        type=float,
        default=300,
        help="--time-limit that the command is given (300)",
    )
    add(
        "--keep",
        metavar="DIR",
        type=Path,
        help="leave working folders in DIR, to repeat a command there",
    )
    add(
        "--list",
        action="store_true",
        help="only print the rows and the commits of the repositories",
    )
    return parser


def chosen(table: Table, names: Sequence[str] | None) -> list[Script]:
    """Return the rows that are named; all without names."""
    if not names:
        return list(table.script)
    found: dict[str, Script] = {}
    for name in names:
        matching = [
            script
            for script in table.script
            if script.name == name or script.name.startswith(f"{name}-")
        ]
        if not matching:
            raise TableError(f"no row is named {name}")
        found |= {script.name: script for script in matching}
    return list(found.values())


def print_repositories(table: Table, scripts: Sequence[Script]) -> None:
    """Print every row's script, and which commits of the repositories were tried."""
    for script in scripts:
        file = f"{script.repository}: {script.folder}/{script.script}".replace("./", "")
        print(f"{script.name:32} {file}" + (f"  (left out: {script.skip})" if script.skip else ""))
    print()
    for repository in sorted({script.repository for script in scripts}):
        print(f"{repository:40} {table.commits.get(repository, 'any commit')}")


def read_outcomes(file: Path | None) -> dict[str, Outcome]:
    """Return the outcomes of a file that an earlier run wrote, by name; none without a file."""
    if file is None or not file.exists():
        return {}
    try:
        outcomes = msgspec.json.decode(file.read_bytes(), type=list[Outcome])
    except (OSError, msgspec.DecodeError) as error:
        raise TableError(f"{file} is no result of --json: {error}") from None
    return {outcome.name: outcome for outcome in outcomes}


def run_all(
    runner: Runner,
    scripts: Sequence[Script],
    earlier: dict[str, Outcome],
    num_jobs: int,
    file: Path | None,
) -> list[Outcome]:
    """Return the outcome of every row; print and write each as soon as it is known."""
    outcomes = dict(earlier)
    lock = threading.Lock()

    def run(script: Script) -> None:
        outcome = runner.run(script)
        with lock:
            if is_over():  # ended from outside, which is no outcome
                return
            outcomes[script.name] = outcome
            print(lines(outcome), flush=True)
            if file is not None:
                found = msgspec.json.encode(list(outcomes.values()))
                file.write_bytes(msgspec.json.format(found, indent=1))

    for script in scripts:
        if script.name in earlier:
            print(lines(earlier[script.name]))
    pool = ThreadPoolExecutor(num_jobs)
    try:
        left = [script for script in scripts if script.name not in earlier]
        for future in as_completed([pool.submit(run, script) for script in left]):
            future.result()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        end_all()
        raise
    finally:
        pool.shutdown()
    return [outcomes[script.name] for script in scripts]


def lines(outcome: Outcome) -> str:
    """Return a row's outcome: one line, one for each command, and one for each line that raises."""
    if outcome.left_out:
        return f"{outcome.name:32} left out: {outcome.left_out}"
    native = outcome.native
    if native is None:
        found = [f"{outcome.name:32} needs a GPU"]
    elif not native.trained:
        return f"{outcome.name:32} fails by itself: {native.last_words[:ERROR_WIDTH]}"
    else:
        ended = "still ran" if native.exit_code is None else "ended"
        found = [f"{outcome.name:32} {ended} after {native.seconds:.0f} s"]
    for command, answer in outcome.answers.items():
        head = f"    {command:8} {answer.seconds:4.0f} s  "
        if answer.answered:
            step = f"{answer.cpu_step_ns / 1e6:.3g} ms" if answer.cpu_step_ns else "-"
            gpu = (
                f"{answer.best_gpu[0]} {answer.best_gpu[1] / 1e6:.3g} ms"
                if answer.best_gpu
                else "-"
            )
            found.append(f"{head}{answer.verdict}: CPU {step}, {gpu}, {answer.num_ops} ops")
        else:
            blame = ", BLAMES THE SCRIPT" if answer.blames_script else ""
            status = "time over" if answer.exit_code is None else f"status {answer.exit_code}"
            found.append(f"{head}NO ANSWER ({status}{blame}): {answer.error[:ERROR_WIDTH]}")
        found += [f"        raises? {line}" for line in answer.raising_lines]
    return "\n".join(found)


def summary(outcomes: Sequence[Outcome]) -> str:
    """Return how many rows there were of each kind."""
    native = [outcome for outcome in outcomes if outcome.is_native]
    commands = sorted({command for outcome in native for command in outcome.answers})
    counts = [
        f"{len(outcomes)} scripts",
        f"{sum(bool(outcome.left_out) for outcome in outcomes)} left out",
        f"{len(native)} run by themselves",
        *(
            f"{sum(outcome.answers[command].answered for outcome in native)} answered by {command}"
            for command in commands
        ),
    ]
    unanswered = [outcome.name for outcome in native if not outcome.is_answered]
    return (
        "\n"
        + ", ".join(counts)
        + (f"\nnot answered: {', '.join(unanswered)}" if unanswered else "")
    )


if __name__ == "__main__":
    sys.exit(main())
