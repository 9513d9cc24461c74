"""What was found on a GPU, as a page: predicted beside measured, before and after calibration."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from breakeven.cost import GpuCalibration
from breakeven.units import format_percent

_Row = Mapping[str, str]


def summary_text(
    calibration: GpuCalibration | None,
    rows: Sequence[_Row],
    answers: Sequence[Mapping[str, Any]],
    left: Sequence[str],
) -> str:
    """Return the page.

    Args:
        calibration: Of the GPU, where it was measured.
        rows: Of ``steps.csv``.
        answers: Of ``reports.jsonl``.
        left: What is still to do.
    """
    lines = ["# A GPU, measured and predicted", ""]
    if calibration is not None:
        m = calibration.machine
        lines += [f"{m.gpu}, {m.processor}, {m.driver}, torch {m.torch_version}, {m.date}.", ""]
    lines += [*step_lines(rows), "", *_command_lines(answers)]
    if left:
        lines += ["", f"## Left: {len(left)}", "", *(f"- {text}" for text in left)]
    return "\n".join(lines) + "\n"


def step_lines(rows: Sequence[_Row]) -> Iterator[str]:
    """Yield how far off the steps were predicted."""
    yield "## Whole steps"
    yield ""
    yield "| Steps | Number | Before: median, P90 | After: median, P90 | Intervals hold, after |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    groups = (
        ("eager, not fitted to", lambda row: row["compile"] == "none" and row["is_fitted"] != "1"),
        ("eager, fitted to", lambda row: row["compile"] == "none" and row["is_fitted"] == "1"),
        ("compiled", lambda row: row["compile"] != "none"),
    )
    for name, belongs in groups:
        some = [row for row in rows if belongs(row) and row["value_ms"] and row["after_ms"]]
        if some:
            before, after = _errors(some, "before"), _errors(some, "after")
            yield f"| {name} | {len(some)} | {before} | {after} | {_held(some)} |"
    ratios = list(_compile_ratios(rows))
    if ratios:
        near = sum(abs(math.log(p / m)) <= math.log(1.15) for m, p in ratios) / len(ratios)
        yield ""
        yield (
            f"Compiled over eager: predicted within 15 % of measured for {format_percent(near)} of "
            f"{len(ratios)} pairs."
        )
    for row in rows:
        if row["note"]:
            step = f"{row['workload']} b{row['batch_size']} {row['precision']} {row['compile']}"
            yield f"- {step}: {row['note']}"


def _errors(rows: Sequence[_Row], when: str) -> str:
    errors = sorted(abs(float(row[f"{when}_ms"]) / float(row["value_ms"]) - 1) for row in rows)
    ninth = errors[min(len(errors) - 1, math.ceil(0.9 * len(errors)) - 1)]
    return f"{format_percent(statistics.median(errors))}, {format_percent(ninth)}"


def _held(rows: Sequence[_Row]) -> str:
    held = [
        float(row["after_low_ms"]) <= float(row["value_ms"]) <= float(row["after_high_ms"])
        for row in rows
    ]
    return format_percent(sum(held) / len(held))


def _compile_ratios(rows: Sequence[_Row]) -> Iterator[tuple[float, float]]:
    """Yield measured and predicted times of a compiled step over those of the eager one."""
    key = ("workload", "batch_size", "precision", "optimizer")
    eager = {tuple(row[k] for k in key): row for row in rows if row["compile"] == "none"}
    for row in rows:
        other = eager.get(tuple(row[k] for k in key))
        if row["compile"] == "none" or other is None:
            continue
        cells = [one[name] for one in (row, other) for name in ("value_ms", "after_ms")]
        if all(cells):
            own_ms, own_predicted, eager_ms, eager_predicted = map(float, cells)
            yield own_ms / eager_ms, own_predicted / eager_predicted


# Where a step ran, in ``pairs.csv``, and how what it was predicted with knew the GPU.
CPU, EAGER, CAPTURED, COMPILED = "CPU", "GPU eager", "GPU captured", "GPU compiled"
NETWORK, CASE = "network", "case"
DRY_RUN = "dry run"
_HOSTS = {"absent": "the GPU absent", "present": "its launches measured"}


def pair_lines(rows: Sequence[_Row]) -> Iterator[str]:
    """Yield what was faster and predicted, and why there is no time of some steps.

    Args:
        rows: Of ``pairs.csv``.
    """
    if any(row["gpu"].startswith(DRY_RUN) for row in rows):
        yield "A dry run: nothing was measured on a GPU, so there is no rate."
        return
    yield from pair_tables(rows)
    for row in rows:
        if row["note"] and row["kind"] in (NETWORK, CASE):
            yield f"- {row['name']}, {row['where']}: {row['note']}"


def pair_tables(rows: Sequence[_Row]) -> Iterator[str]:
    """Yield which device was faster, how often it was predicted, and how good intervals were.

    Args:
        rows: Of ``pairs.csv``.
    """
    timed = {(row["kind"], row["name"], row["where"]): row for row in rows if row["value_ms"]}

    def pairs_of(kind: str, place: str) -> list[tuple[_Row, _Row]]:
        return [(timed[kind, name, CPU], gpu) for (found, name, where), gpu in timed.items()
                if (found, where) == (kind, place) and (kind, name, CPU) in timed]  # fmt: skip

    yield "| Steps | Number | CPU faster | GPU ÷ CPU, median |"
    yield "| --- | ---: | ---: | ---: |"
    for kind in (NETWORK, CASE):
        for place in (EAGER, CAPTURED, COMPILED):
            ratios = [float(gpu["value_ms"]) / float(cpu["value_ms"])
                      for cpu, gpu in pairs_of(kind, place)]  # fmt: skip
            if ratios:
                num_slower, half = sum(ratio > 1 for ratio in ratios), statistics.median(ratios)
                yield f"| {kind}, {place} | {len(ratios)} | {num_slower} | {half:.2f} |"
    yield ""
    groups = [(host, kind) for kind in (NETWORK, CASE) for host in _HOSTS]
    yield "| Steps | Predicted with | Number | Right device | Wrong | Too close |"
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    for host, kind in groups:
        pairs = [(cpu, gpu) for cpu, gpu in pairs_of(kind, EAGER) if gpu[f"{host}_choice"]]
        if pairs:
            yield f"| {kind} | {_HOSTS[host]} | {len(pairs)} | {_right_device(pairs, host)} |"
    yield ""
    yield (
        "| Steps | Predicted with | Number | 90 % interval holds | High ÷ low, median | "
        "Predicted ÷ measured, median |"
    )
    yield "| --- | --- | ---: | ---: | ---: | ---: |"
    for host, kind in groups:
        for where in (EAGER, CAPTURED, COMPILED):
            some = [row for (found, _, place), row in timed.items()
                    if (found, place) == (kind, where) and row[f"{host}_ms"]]  # fmt: skip
            if some:
                yield f"| {kind}, {where} | {_HOSTS[host]} | {len(some)} | {_quality(some, host)} |"


def _right_device(pairs: Sequence[tuple[_Row, _Row]], host: str) -> str:
    """Return how many devices were predicted right, wrong and not at all."""
    counts: Counter[str] = Counter()
    for cpu, gpu in pairs:
        faster = "gpu" if float(gpu["value_ms"]) < float(cpu["value_ms"]) else "cpu"
        choice = gpu[f"{host}_choice"]
        is_open = choice not in ("cpu", "gpu")
        counts["open" if is_open else "right" if choice == faster else "wrong"] += 1
    return " | ".join(
        f"{counts[each]} ({format_percent(counts[each] / len(pairs))})"
        for each in ("right", "wrong", "open")
    )


def _quality(rows: Sequence[_Row], host: str) -> str:
    cells = [
        [
            float(row[name])
            for name in ("value_ms", f"{host}_ms", f"{host}_low_ms", f"{host}_high_ms")
        ]
        for row in rows
    ]
    num_held = sum(low <= measured <= high for measured, _, low, high in cells)
    width = statistics.median(high / low for _, _, low, high in cells)
    bias = statistics.median(predicted / measured for measured, predicted, _, _ in cells)
    share = format_percent(num_held / len(rows))
    return f"{num_held} ({share}) | {width:.1f} | {bias:.2f}"


def _command_lines(answers: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "## Commands"
    yield ""
    yield "| Command | Exit code | Seconds | GPU measured, ms | GPU predicted, ms |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for answer in answers:
        measured, predicted = _gpu_times(answer["answer"])
        yield (
            f"| {answer['key']} | {answer['exit_code']} | {answer['seconds']} | {measured} | "
            f"{predicted} |"
        )
    gains = list(_gains(answers))
    if gains:
        yield ""
        yield "Faults that rules find, as written over as mended, on the GPU:"
        yield ""
        yield from gains


def _gpu_times(document: Any) -> tuple[str, str]:
    """Return what a check measured and predicted of GPUs; empty for other documents."""
    results = document.get("results", ()) if isinstance(document, dict) else ()
    times = {"measured": "", "predicted": ""}
    for result in results:
        if result.get("kind") == "gpu" and result.get("source") in times:
            times[result["source"]] = f"{result['step_ns'] / 1e6:.3f}"
    return times["measured"], times["predicted"]


def _gains(answers: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    known = {answer["name"]: answer["answer"] for answer in answers if answer["part"] == "doctor"}
    for name, document in known.items():
        mended = known.get(f"{name} mended")
        if mended is None:
            continue
        told = []
        for kind, before, after in zip(
            ("measured", "predicted"), _gpu_times(document), _gpu_times(mended), strict=True
        ):
            if before and after:
                told.append(f"{kind} {float(before) / float(after):.2f}x")
        yield f"- {name}: {', '.join(told) or 'no GPU time'}"
