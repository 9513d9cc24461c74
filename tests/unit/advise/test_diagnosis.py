from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import breakeven
from breakeven.advise import Finding, RuleInput, all_rules, diagnose
from breakeven.cost import reference_host
from breakeven.device import find_device
from breakeven.simulate import Severity
from breakeven.trace import (
    Copy,
    DeviceFault,
    Event,
    GraphLaunch,
    HostWork,
    Op,
    Phase,
    StepTrace,
    Sync,
)
from factories.cases import findings_of, made_up_case
from factories.steps import MadeUpCosts, at, op, tensor

BATCH = 1


def findings(*events: Event, costs: MadeUpCosts | None = None) -> tuple[Finding, ...]:
    return tuple(one.finding for one in diagnose(made_up_case(*events, costs=costs)))


def found(code: str, *events: Event, costs: MadeUpCosts | None = None) -> Finding:
    (finding,) = [f for f in findings(*events, costs=costs) if f.code == code]
    return finding


def sync(kind: str, line: int = 7) -> Sync:
    return Sync(kind=kind, num_bytes=4, location=at(line))


def copy(storage: int, num_bytes: int = 100, *, is_pinned: bool = False) -> Copy:
    return Copy(
        source="cpu",
        destination="cuda:0",
        num_bytes=num_bytes,
        is_pinned=is_pinned,
        non_blocking=is_pinned,
        location=at(3),
        storage=storage,
    )


def test_a_healthy_step_has_no_findings() -> None:
    healthy = (copy(BATCH, is_pinned=True), op(100, host_ns=10), op(200, host_ns=10))
    assert findings(*healthy) == ()


def test_a_finding_carries_what_the_rule_found() -> None:
    (one,) = diagnose(made_up_case(op(100, host_ns=90), sync("item")))

    assert one.match.events == (1,)
    assert one.finding.gain_fraction == pytest.approx(90 / 190)
    # The step after the fix is the device's 100; the interval of the gain holds the gain.
    assert one.finding.fixed_ns == pytest.approx(100)
    assert one.finding.gain_low_fraction <= one.finding.gain_fraction
    assert one.finding.gain_fraction <= one.finding.gain_high_fraction
    assert one.finding.severity is Severity.HIGH


def test_a_line_that_raises_comes_first() -> None:
    fault = DeviceFault(message="the target is still on the CPU", location=at(5))
    found = diagnose(made_up_case(op(100, host_ns=90), sync("item"), faults=(fault,)))
    assert [one.finding.code for one in found] == ["DEV001", "SYNC001"]


@pytest.mark.parametrize(
    ("source", "is_told"),
    [
        ("try:\n    show(x.numpy())\nexcept TypeError:\n    show(x.cpu().numpy())", False),
        ("try:\n    show(x.numpy())\nexcept:\n    pass", False),
        ("try:\n    show(x.numpy())\nexcept (ValueError, RuntimeError):\n    pass", False),
        ("try:\n    show(x.numpy())\nexcept KeyError:\n    pass", True),
        ("try:\n    show(x.numpy())\nexcept TypeError as error:\n    raise Bad from error", True),
        ("try:  # all\n    for x in xs: show(x.numpy())\nexcept TypeError:\n    pass", True),
        ("x = 1\nshow(x.numpy())", True),
    ],
)
def test_a_line_that_is_expected_to_fail_is_not_told(source: str, is_told: bool) -> None:
    fault = DeviceFault(message="an array", location=at(2))
    case = made_up_case(op(100, host_ns=90), faults=(fault,), source=source)
    assert list(findings_of(case, "DEV001")) == [("DEV001", 2)] * is_told


def test_launches_bound_a_small_step() -> None:
    events = tuple(op(10, host_ns=90) for _ in range(10))
    finding = found("LAUNCH001", *events, costs=MadeUpCosts(launch_ns=10, graph_launch_ns=50))

    assert finding.cause == "LAUNCH_FLOOR"
    assert finding.share_fraction == pytest.approx(0.9)  # busy for 100 of 1000
    assert finding.gain_fraction == pytest.approx(0.9)  # a graph: 50 on the host, 100 on the GPU
    assert finding.title == "launching 10 kernels takes 1 µs, running them 100 ns"


@pytest.mark.parametrize(
    ("script_ms", "shares"),
    [
        (0.8, [1.7 / 1.8]),  # launching is most of it: where the device idles
        (1.2, [1 / 2.2]),  # less than half: what launching takes
        (3.9, [1 / 4.9]),
        (4.1, []),
    ],
)
def test_launches_beside_more_work_of_the_script(script_ms: float, shares: list[float]) -> None:
    work = HostWork(kind="script", duration_ns=round(script_ms * 1e6), phase=Phase.FORWARD)
    events = (*(op(10_000, host_ns=100_000) for _ in range(10)), work)
    found = [one for one in findings(*events) if one.code == "LAUNCH001"]

    assert [one.share_fraction for one in found] == pytest.approx(shares)


def test_a_busy_device_is_not_bound_by_launches() -> None:
    assert findings(op(100, host_ns=90)) == ()
    assert findings(op(95, host_ns=100)) == ()  # idle for 5 %: not worth a change


def updates(count: int, phase: Phase, name: str, line: int | None = 8) -> tuple[Op, ...]:
    return tuple(
        op(
            10,
            host_ns=100,
            name=name,
            phase=phase,
            line=line,
            inputs=(tensor(5, storage=20 + i, device="cuda:0"),),
        )
        for i in range(count)
    )


@pytest.mark.parametrize(
    "events",
    [
        updates(3, Phase.OPTIMIZER, "aten.add_.Tensor"),  # too few to matter
        updates(10, Phase.OPTIMIZER, "aten._foreach_add_.List"),
        updates(10, Phase.FORWARD, "aten.relu.default"),  # not in place: layers
        updates(10, Phase.BACKWARD, "aten.add_.Tensor"),  # autograd adds gradients up
        10 * updates(1, Phase.FORWARD, "aten.add_.Tensor"),  # one tensor, many times
    ],
)
def test_what_is_no_parameter_loop(events: tuple[Op, ...]) -> None:
    assert "OPT001" not in {f.code for f in findings(*events)}


def test_findings_are_sorted_by_gain() -> None:
    events = (
        copy(BATCH, 100),
        op(100, host_ns=90),
        sync("nonzero", 5),
        op(500, host_ns=400),
        sync("item", 6),
    )
    gains = [f.gain_fraction for f in findings(*events)]

    assert len(gains) >= 3
    assert gains == sorted(gains, reverse=True)
    assert all(0 <= f.share_fraction <= 1 and 0 <= f.gain_fraction <= 1 for f in findings(*events))


def test_rules_work_with_the_real_costs() -> None:
    batch = tensor(100, 8, device="cuda:0", storage=BATCH)
    weight = tensor(8, 8, device="cuda:0", storage=30)
    layer = Op(name="aten.mm.default", inputs=(batch, weight), outputs=(batch,))
    update = [
        Op(
            name="aten.add_.Tensor",
            inputs=(tensor(8, 8, device="cuda:0", storage=40 + i),) * 2,
            outputs=(tensor(8, 8, device="cuda:0", storage=40 + i),),
            phase=Phase.OPTIMIZER,
        )
        for i in range(8)
    ]
    trace = StepTrace(events=(copy(BATCH), *[layer] * 20, *update, sync("item")))
    codes = {
        one.finding.code
        for one in diagnose(RuleInput.of(trace, find_device("A100"), reference_host()))
    }

    assert codes >= {"COPY001", "LAUNCH001", "SYNC001"}


CAUSES = {
    "DEV001": "PART_ON_CPU",
    "DEV002": "NOT_ON_GPU",
    "DEV003": "PART_ON_CPU",
    "LAUNCH001": "LAUNCH_FLOOR",
    "LAUNCH002": "LAUNCH via SOLVER",
    "LAUNCH003": "RECOMPUTE_FROZEN",
    "BATCH001": "BATCH_SMALL",
    "MEM001": "MEMORY_FULL",
    "LOOP001": "PER_SAMPLE_LOOP",
    "LOOP002": "TIME_LOOP",
    "SYNC001": "SYNC_ITEM",
    "SYNC002": "SYNC_EXPLICIT",
    "SYNC003": "SYNC_SHAPE",
    "SYNC004": "SYNC_METRICS",
    "SYNC005": "SYNC_BRANCH",
    "SYNC006": "SYNC_CLIP",
    "SYNC007": "SYNC_DIST",
    "SYNC008": "LOG_HEAVY",
    "SYNC009": "CPU_ROUNDTRIP",
    "COPY001": "H2D_PAGEABLE",
    "COPY002": "H2D_CREATE",
    "COPY003": "H2D_SCALAR",
    "COPY004": "DATA_NOT_RESIDENT",
    "COPY005": "H2D_WIDE",
    "OPT001": "OPT_LOOP",
    "OPT002": "OPT_UNFUSED",
    "OPT003": "ZERO_GRAD",
    "OPT004": "EMBED_DENSE",
    "OPT005": "PART_ON_CPU",
    "LOAD001": "LOADER_WORKERS0",
    "LOAD002": "LOADER_PER_ITEM",
    "LOAD003": "LOADER_RESPAWN",
    "LOAD004": "LOADER_TOO_MANY",
    "LOAD005": "TRANSFORM_CPU",
    "LOAD006": "IO_SLOW",
    "HOST001": "ENV_BOUND",
    "RUN001": "ANOMALY",
    "RUN002": "DATAPARALLEL",
    "RUN003": "EVAL_OFTEN",
    "RUN004": "CKPT_OFTEN",
    "RUN005": "GRAPH_RETAINED",
    "RUN007": "HW_ENV",
    "TIME001": "TIME_NO_SYNC",
    "TIME002": "TIME_WARMUP",
    "PREC001": "FP64",
    "PREC002": "NO_TF32_AMP",
    "PREC004": "MISALIGNED",
    "KERN001": "CHANNELS_LAST",
    "KERN002": "CUDNN_BENCH_OFF",
    "KERN003": "CUDNN_BENCH_VARY",
    "KERN004": "CONV_BIAS",
    "KERN005": "LINALG_SMALL",
    "CPU001": "THREADS_SMALL",
    "CPU002": "THREADS_OVER",
    "CPU003": "DENORMALS",
}


def test_codes_and_causes_are_those_that_reports_name() -> None:
    registered = [(rule.code, rule.cause) for rule in all_rules()]
    assert registered == list(CAUSES.items())  # and in the order in which equal gains are told


def test_rules_have_stable_codes_and_a_page_each() -> None:
    codes = [rule.code for rule in all_rules()]
    assert len(set(codes)) == len(codes)
    for rule in all_rules():
        assert re.fullmatch(r"[A-Z]+\d{3}", rule.code)
        assert re.fullmatch(r"[A-Z0-9_]+( via SOLVER)?", rule.cause)
        assert rule.page.startswith(f"# {rule.code}: ")


def test_a_step_that_replays_graphs_is_not_told_to_use_them() -> None:
    replayed = [msgspec.structs.replace(op(5), is_replayed=True) for _ in range(20)]
    eager = [op(5, host_ns=100) for _ in range(3)]
    costs = MadeUpCosts(launch_ns=10, graph_launch_ns=50)

    finding = found("LAUNCH001", GraphLaunch(), *replayed, *eager, costs=costs)
    assert finding.title.startswith("launching 3 kernels and the CUDA graphs takes 380 ns")
    assert finding.fix == "a larger batch, or more of the step in the graph"

    one_graph = (GraphLaunch(), *replayed)
    assert "LAUNCH001" not in {one.code for one in findings(*one_graph, costs=costs)}


PACKAGE = Path(breakeven.__file__).parent
RULE = """\
from breakeven.advise.rule import Match, Matches, RuleInput, rule


@rule("SYNC999", "SLEPT")
def sleeps(case: RuleInput) -> Matches:
    for source, call in case.sources.calls("time.sleep"):
        yield Match(title="the step sleeps", fix="wake up", location=source.location(call))
"""
PAGE = """\
# SYNC999: the script says how long it slept

Cause: `SLEPT`

## What it does

Finds `time.sleep` in the script.
"""
ASKED = """
from breakeven.cli import main
from breakeven.cost import reference_host
from breakeven.device import find_device
from breakeven.advise import RuleInput, Sources, diagnose
from breakeven.trace import Op, SourceText, StepTrace

assert main(["rules", "SLEPT"]) == 0
script = SourceText(path="train.py", text="import time\\nfor step in range(9): time.sleep(1)")
trace = StepTrace(events=(Op(name="aten.relu.default", inputs=(), outputs=()),))
case = RuleInput.of(trace, find_device("A100"), reference_host(), sources=Sources.of((script,)))
for one in diagnose(case):
    print(one.finding.code, one.finding.file, one.finding.line, one.finding.title)
"""


def test_a_new_rule_is_listed_and_finds_what_it_is_about(tmp_path: Path) -> None:
    rules = Path("advise", "rules")
    copy_with_links(PACKAGE, tmp_path / "breakeven", but=rules.parts)
    (tmp_path / "breakeven" / rules / "sleep.py").write_text(RULE, encoding="utf-8")
    (tmp_path / "breakeven" / rules / "SYNC999.md").write_text(PAGE, encoding="utf-8")

    done = subprocess.run(
        (sys.executable, "-c", ASKED),
        env=os.environ | {"PYTHONPATH": str(tmp_path), "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "SYNC999  the script says how long it slept" in done.stdout
    assert "SYNC999 train.py 2 the step sleeps" in done.stdout


def copy_with_links(folder: Path, copy: Path, but: tuple[str, ...]) -> None:
    """Copy folders down to one, and put links in the place of all else."""
    copy.mkdir()
    for entry in folder.iterdir():
        if entry.name == "__pycache__":
            continue
        if but and entry.name == but[0]:
            copy_with_links(entry, copy / entry.name, but[1:])
        else:
            (copy / entry.name).symlink_to(entry)
