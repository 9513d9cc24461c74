"""device-rules: what a lecture teaches about devices, checked on GPUs that are pretended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import msgspec

from breakeven.capture import run_on_fake_gpus
from breakeven.device import find_device
from breakeven.systems.bench import Bench, script_path
from breakeven.systems.catalogue import Findings, Ratio, ratio_of, rows, table
from breakeven.systems.published import DEVICE_COPY_BAND
from breakeven.timing import Estimate
from breakeven.trace import Copy, Event, Op, Phase, StepTrace, Sync, TensorSpec
from breakeven.units import NS_PER_S, format_bytes, format_ratio
from breakeven.verdict import Claim, ClaimOutcome, ColumnKind, RowSource, SystemTable

_SCRIPT = "device_rules.py"
_NUM_DEVICES = 2
_TIME_LIMIT_S = 120.0
_GPUS = ("T4", "A100 SXM4 80GB", "RTX 4090")
_SIZES_BYTES = (4, 4_000, 64_000, 1_000_000, 16_000_000, 256_000_000, 1_000_000_000)
_WAYS = ("pageable to GPU", "pinned to GPU", "GPU to host", "inside")
_RATIO = "pinned / inside"
_DEVICE, _HOST = "cuda:0", "cpu"
_FLOAT_BYTES = 4


class RuleOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the script: a rule, and whether it holds.

    Args:
        rule: What PyTorch promises.
        code: The expression that was evaluated.
        holds: Whether it was true, or raised what it should.
        found: Its value, or the exception.
    """

    rule: str
    code: str
    holds: bool
    found: str


def run(bench: Bench) -> Findings:
    """Check the rules on two pretended GPUs, and predict copies to and within real ones."""
    outcomes = check_rules(bench.time_limit_s(_TIME_LIMIT_S))
    copies = time_copies(bench)
    return Findings(
        host=bench.host_summary(),
        tables=(_rules_table(outcomes), *copy_tables(copies)),
        claims=(rules_claim(outcomes), copies_claim(copies)),
    )


def check_rules(time_limit_s: float = _TIME_LIMIT_S) -> tuple[RuleOutcome, ...]:
    """Return what became of each rule on two pretended GPUs.

    Args:
        time_limit_s: When the script is ended.

    Raises:
        BreakevenError: The script did not come to its end.
    """
    printed = run_on_fake_gpus(
        script_path(_SCRIPT), num_devices=_NUM_DEVICES, time_limit_s=time_limit_s
    )
    return tuple(msgspec.json.decode(line, type=RuleOutcome) for line in printed.splitlines())


def _rules_table(outcomes: tuple[RuleOutcome, ...]) -> SystemTable:
    return table(
        f"Rules, each run on {_NUM_DEVICES} pretended GPUs",
        dict.fromkeys(("rule", "code", "outcome"), ColumnKind.TEXT),
        rows(RowSource.CHECKED, ((one.rule, one.code, _outcome_text(one)) for one in outcomes)),
        note="x is a tensor on the CPU, x_gpu its copy on cuda:0, layer a linear layer on the "
        "CPU. Run by itself on a machine with GPUs, the script checks those.",
    )


def _outcome_text(outcome: RuleOutcome) -> str:
    if not outcome.holds:
        return f"broken: {outcome.found}"
    name, colon, _ = outcome.found.partition(":")
    return name if colon and name.endswith("Error") else "true"


def rules_claim(outcomes: tuple[RuleOutcome, ...]) -> Claim:
    """Return whether all rules hold.

    Args:
        outcomes: Of each rule.
    """
    broken = [outcome for outcome in outcomes if not outcome.holds]
    first = f"{broken[0].rule}: {broken[0].code} gave {broken[0].found}" if broken else ""
    is_all = bool(outcomes) and not broken
    return Claim(
        claim="Every rule about devices holds",
        published="taught as rules",
        ours=f"{len(outcomes) - len(broken)} of {len(outcomes)} hold on {_NUM_DEVICES} pretended "
        "GPUs",
        outcome=ClaimOutcome.AGREES if is_all else ClaimOutcome.DISAGREES,
        because=first
        or "Each is a line of Python that was run. They show that the pretended GPUs, on which "
        "steps are recorded, keep the rules of real ones.",
    )


def copies_claim(copies: tuple[CopyTimes, ...]) -> Claim:
    """Return whether a copy between host and device is far slower than one inside the device.

    Args:
        copies: Of the largest size on each GPU, among others.
    """
    ratios = {copy.device: copy.pinned_ratio for copy in copies if copy.is_largest}
    if all(ratio.low >= DEVICE_COPY_BAND.low for ratio in ratios.values()):
        outcome = ClaimOutcome.AGREES
    elif any(ratio.high < DEVICE_COPY_BAND.low for ratio in ratios.values()):
        outcome = ClaimOutcome.DISAGREES
    else:
        outcome = ClaimOutcome.OPEN
    found = ", ".join(f"{device} {ratio}" for device, ratio in ratios.items())
    return Claim(
        claim=f"1 GB takes at least {format_ratio(DEVICE_COPY_BAND.low)} as long between host and "
        "device, even from pinned memory, as inside the device",
        published="far slower",
        ours=found,
        outcome=outcome,
        because="Predicted, not measured. By their datasheets: "
        + "; ".join(map(_datasheet, ratios))
        + ".",
    )


def _datasheet(name: str) -> str:
    device = find_device(name)
    link, memory = (
        f"{format_bytes(rate, 2)}/s"
        for rate in (device.link_bytes_per_s, device.memory_bytes_per_s)
    )
    return f"{name}, link {link}, memory {memory}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTimes:
    """One size on one GPU, as a host sees it that waits for the end of the copy.

    Args:
        device: The GPU.
        num_bytes: Size.
        ways: From ordinary and from page-locked memory to the GPU, from the GPU to ordinary memory,
            and from one place of its memory to another.
    """

    device: str
    num_bytes: int
    ways: tuple[Estimate, ...]

    @property
    def is_largest(self) -> bool:
        """Return whether it is of the largest size."""
        return self.num_bytes == max(_SIZES_BYTES)

    @property
    def pinned_ratio(self) -> Ratio:
        """Return how many times as long the fastest way from the host takes as that inside."""
        _, from_pinned, _, inside = self.ways
        return ratio_of(from_pinned, inside)


def time_copies(bench: Bench) -> tuple[CopyTimes, ...]:
    """Return the times of all sizes on all GPUs, GPU by GPU."""
    traces = [StepTrace(events=way) for size in _SIZES_BYTES for way in _events(size)]
    predictions = bench.predict(traces, _GPUS)
    found: list[CopyTimes] = []
    for column in range(len(_GPUS)):
        ways = iter(predictions[column :: len(_GPUS)])
        for size in _SIZES_BYTES:
            of_size = tuple(islice(ways, len(_WAYS)))
            times = tuple(way.estimate for way in of_size)
            found.append(CopyTimes(device=of_size[0].device.name, num_bytes=size, ways=times))
    return tuple(found)


def _events(size: int) -> tuple[tuple[Event, ...], ...]:
    """Return the ways of a copy: what torch does for each, until the host goes on."""
    # Outside of the forward pass: no module is called and autograd records nothing.
    phase = Phase.DATA
    source, target = (
        TensorSpec(shape=(size // _FLOAT_BYTES,), dtype="float32", device=_DEVICE, storage=storage)
        for storage in (1, 2)
    )
    to_device = [
        Copy(source=_HOST, destination=_DEVICE, num_bytes=size, is_pinned=is_pinned, phase=phase)
        for is_pinned in (False, True)
    ]
    inside = Op(name="aten.copy_.default", inputs=(target, source), outputs=(target,), phase=phase)
    return (
        (to_device[0],),
        (to_device[1],),
        (Sync(kind="cpu", num_bytes=size, phase=phase),),
        (inside, Sync(kind="synchronize", phase=phase)),
    )


def copy_tables(copies: Sequence[CopyTimes]) -> tuple[SystemTable, ...]:
    """Return the rates of the largest size on all GPUs, and all times on each."""
    rates = (
        (copy.device, *(_rate(copy, way) for way in copy.ways), copy.pinned_ratio.value)
        for copy in copies
        if copy.is_largest
    )
    rates_table = table(
        f"Bytes per second of a copy of {format_bytes(max(_SIZES_BYTES))}",
        {**dict.fromkeys(("device", *_WAYS), ColumnKind.TEXT), _RATIO: ColumnKind.RATIO},
        rows(RowSource.PREDICTED, rates),
        note="Inside, each byte is read and written once. The last column: how many times as long "
        "the fastest way from the host takes.",
    )
    columns = {
        "size": ColumnKind.BYTES,
        **dict.fromkeys(_WAYS, ColumnKind.TIME_NS),
        _RATIO: ColumnKind.RATIO,
    }
    times_tables = (
        table(
            f"Time of a copy, {gpu}",
            columns,
            rows(
                RowSource.PREDICTED,
                (
                    (copy.num_bytes, *copy.ways, copy.pinned_ratio.value)
                    for copy in copies
                    if copy.device == gpu
                ),
            ),
            note="Until a host that waits goes on. Small copies take what the call and the wait "
            "take: gather them into few large ones.",
        )
        for gpu in _GPUS
    )
    return (rates_table, *times_tables)


def _rate(copy: CopyTimes, time: Estimate) -> str:
    return f"{format_bytes(copy.num_bytes * NS_PER_S / time.value_ns, 2)}/s"
