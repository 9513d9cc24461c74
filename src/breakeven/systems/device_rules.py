"""device-rules: a lecture's rules about devices, checked on fake GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import msgspec

from breakeven.capture import run_on_fake_gpus
from breakeven.device import find_device
from breakeven.report import Claim, ClaimOutcome, ColumnKind, RowSource, SystemReport, SystemTable
from breakeven.systems.bench import Bench, script_path
from breakeven.systems.catalogue import FACTS, Ratio, ratio_of, report, table, texts, times
from breakeven.timing import Estimate
from breakeven.trace import Copy, Event, Op, Phase, StepTrace, Sync, TensorSpec
from breakeven.units import format_bytes, format_ratio

_GPUS: list[str] = FACTS["device-rules"]["gpus"]
_LEAST_RATIO: float = FACTS["device-rules"]["band"][0]
_NOTES: dict[str, str] = FACTS["device-rules"]["notes"]
_NUM_DEVICES = 2
_TIME_LIMIT_S = 120.0
_SIZES_BYTES = (4, 4_000, 64_000, 1_000_000, 16_000_000, 256_000_000, 1_000_000_000)
_WAYS = ("pageable to GPU", "pinned to GPU", "GPU to host", "inside")


class RuleOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the script: a rule, and whether it holds.

    Args:
        rule: PyTorch's promise.
        code: The evaluated expression.
        holds: Whether it was true, or raised the expected exception.
        found: Its value, or the exception.
    """

    rule: str
    code: str
    holds: bool
    found: str


def run(bench: Bench) -> SystemReport:
    """Check the rules on two fake GPUs, and predict copies to and within real ones."""
    outcomes = check_rules(bench.time_limit_s(_TIME_LIMIT_S))
    copies = time_copies(bench)
    return report(
        "device-rules",
        bench.host_summary(),
        tables=(_rules_table(outcomes), *copy_tables(copies)),
        claims=(rules_claim(outcomes), copies_claim(copies)),
    )


def check_rules(time_limit_s: float = _TIME_LIMIT_S) -> tuple[RuleOutcome, ...]:
    """Check each rule on two fake GPUs.

    Raises:
        BreakevenError: If the script failed, or did not end within ``time_limit_s``.
    """
    printed = run_on_fake_gpus(
        script_path("device_rules.py"), num_devices=_NUM_DEVICES, time_limit_s=time_limit_s
    )
    return tuple(msgspec.json.decode(line, type=RuleOutcome) for line in printed.splitlines())


def _rules_table(outcomes: Sequence[RuleOutcome]) -> SystemTable:
    cells: list[tuple[str, str, str]] = []
    for one in outcomes:
        name, colon, _ = one.found.partition(":")
        held = name if colon and name.endswith("Error") else "true"
        cells.append((one.rule, one.code, held if one.holds else f"broken: {one.found}"))
    return table(
        f"Rules, each run on {_NUM_DEVICES} fake GPUs",
        texts("rule", "code", "outcome"),
        (RowSource.CHECKED, cells),
        note=_NOTES["rules"],
    )


def rules_claim(outcomes: Sequence[RuleOutcome]) -> Claim:
    """Return the claim that all rules hold."""
    broken = [outcome for outcome in outcomes if not outcome.holds]
    first = f"{broken[0].rule}: {broken[0].code} gave {broken[0].found}" if broken else ""
    is_all = bool(outcomes) and not broken
    return Claim(
        claim="Every rule about devices holds",
        published="taught as rules",
        ours=f"{len(outcomes) - len(broken)} of {len(outcomes)} hold on {_NUM_DEVICES} fake GPUs",
        outcome=ClaimOutcome.AGREES if is_all else ClaimOutcome.DISAGREES,
        because=first
        or "Each is a line of Python that was run. They show that the fake GPUs, on which "
        "steps are recorded, keep the rules of real ones.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTimes:
    """Copies of one size on one GPU, timed until a host that waits for the copy continues.

    Args:
        device: The GPU.
        num_bytes: Size of the copy.
        ways: Times from pageable and from pinned memory to the GPU, from the GPU to pageable
            memory, and within its memory.
    """

    device: str
    num_bytes: int
    ways: tuple[Estimate, ...]

    @property
    def pinned_ratio(self) -> Ratio:
        """The time of the fastest copy from the host over that of a copy inside the device."""
        _, from_pinned, _, inside = self.ways
        return ratio_of(from_pinned, inside)


def time_copies(bench: Bench) -> list[CopyTimes]:
    """Predict the times of all sizes on all GPUs, ordered by GPU."""
    traces = [StepTrace(events=way) for size in _SIZES_BYTES for way in _events(size)]
    predictions = bench.predict(traces, _GPUS)
    found: list[CopyTimes] = []
    for column in range(len(_GPUS)):
        ways = iter(predictions[column :: len(_GPUS)])
        for size in _SIZES_BYTES:
            of_size = tuple(islice(ways, len(_WAYS)))
            estimates = tuple(way.estimate for way in of_size)
            name = of_size[0].device.name
            found.append(CopyTimes(device=name, num_bytes=size, ways=estimates))
    return found


def _events(size: int) -> tuple[tuple[Event, ...], ...]:
    """Return torch's events for each way of a copy, until the host continues."""
    # The phase is not the forward pass: no module is called and autograd records nothing.
    phase = Phase.DATA
    source, target = (
        TensorSpec(shape=(size // 4,), dtype="float32", device="cuda:0", storage=storage)
        for storage in (1, 2)
    )
    pageable, pinned = (
        Copy(source="cpu", destination="cuda:0", num_bytes=size, is_pinned=is_pinned, phase=phase)
        for is_pinned in (False, True)
    )
    inside = Op(name="aten.copy_.default", inputs=(target, source), outputs=(target,), phase=phase)
    return (
        (pageable,),
        (pinned,),
        (Sync(kind="cpu", num_bytes=size, phase=phase),),
        (inside, Sync(kind="synchronize", phase=phase)),
    )


def copies_claim(copies: Sequence[CopyTimes]) -> Claim:
    """Return the claim that a copy between host and device is far slower than one inside it."""
    ratios = {
        copy.device: copy.pinned_ratio for copy in copies if copy.num_bytes == _SIZES_BYTES[-1]
    }
    outcome = ClaimOutcome.OPEN
    if all(ratio.low >= _LEAST_RATIO for ratio in ratios.values()):
        outcome = ClaimOutcome.AGREES
    elif any(ratio.high < _LEAST_RATIO for ratio in ratios.values()):
        outcome = ClaimOutcome.DISAGREES
    datasheets = (
        f"{name}, link {format_bytes(device.link_bytes_per_s, 2)}/s, "
        f"memory {format_bytes(device.memory_bytes_per_s, 2)}/s"
        for name in ratios
        for device in [find_device(name)]
    )
    return Claim(
        claim=f"1 GB takes at least {format_ratio(_LEAST_RATIO)} as long between host and "
        "device, even from pinned memory, as inside the device",
        published="far slower",
        ours=", ".join(f"{device} {ratio}" for device, ratio in ratios.items()),
        outcome=outcome,
        because=f"Predicted, not measured. By their datasheets: {'; '.join(datasheets)}.",
    )


def copy_tables(copies: Sequence[CopyTimes]) -> list[SystemTable]:
    """Return a table of all times for each GPU."""
    return [
        table(
            f"Time of a copy, {gpu}",
            {"size": ColumnKind.BYTES} | times(*_WAYS) | {"pinned / inside": ColumnKind.RATIO},
            (
                RowSource.PREDICTED,
                [
                    (copy.num_bytes, *copy.ways, copy.pinned_ratio.value)
                    for copy in copies
                    if copy.device == gpu
                ],
            ),
            note=_NOTES["times"],
        )
        for gpu in _GPUS
    ]
