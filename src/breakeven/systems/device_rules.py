"""device-rules: what a lecture teaches about devices, checked on GPUs that are pretended."""

from __future__ import annotations

import msgspec

from breakeven.capture import run_on_pretended_gpus
from breakeven.device import find_device
from breakeven.systems.bench import Bench, script_path
from breakeven.systems.device_rules_copies import (
    CopyTimes,
    copy_tables,
    time_copies,
)
from breakeven.systems.findings import Findings, rows, table
from breakeven.systems.published import DEVICE_COPY_BAND
from breakeven.units import format_bytes, format_ratio
from breakeven.verdict import (
    Claim,
    ClaimOutcome,
    ColumnKind,
    RowSource,
    SystemTable,
)

_SCRIPT = "device_rules.py"
_NUM_DEVICES = 2
_TIME_LIMIT_S = 120.0


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
    printed = run_on_pretended_gpus(
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
