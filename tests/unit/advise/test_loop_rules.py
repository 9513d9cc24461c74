from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from msgspec.structs import replace

from breakeven.advise import Diagnosis, Finding, RuleInput, Sources, diagnose
from breakeven.cost import reference_host, shipped_costs
from breakeven.device import find_device
from breakeven.simulate import CostModel
from breakeven.trace import (
    Copy,
    Event,
    HostWork,
    Location,
    Op,
    Phase,
    RunFacts,
    SourceText,
    StepTrace,
    Sync,
    TensorSpec,
)
from factories.steps import GPU, HOST, MadeUpCosts, model_call, op, tensor

FILE = "train.py"
BATCH, WEIGHT, FIRST = 1, 2, 100
SIZE = 8


class Script:
    """A source and the events that its lines issue; tensors are numbered as they are made."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.events: list[Event] = []
        self.stacks: dict[tuple[Location, ...], int] = {}
        self._next = FIRST

    def stack(self, *lines: int) -> int:
        places = tuple(Location(file=FILE, line=line) for line in lines)
        return self.stacks.setdefault(places, len(self.stacks))

    def op(
        self,
        name: str,
        *inputs: TensorSpec,
        lines: tuple[int, ...],
        phase: Phase = Phase.FORWARD,
        out: TensorSpec | None = None,
        module: str = "",
    ) -> TensorSpec:
        """Issue an operator on the last of ``lines`` and return its result."""
        if out is None:
            out = tensor(SIZE, storage=self._next, device="cuda:0")
            self._next += 1
        made = op(10, host_ns=100, name=f"aten.{name}", inputs=inputs, outputs=(out,), phase=phase)
        self.add(made, lines, module)
        return out

    def add(self, event: Event, lines: tuple[int, ...], module: str = "") -> None:
        place = Location(file=FILE, line=lines[-1])
        changes = {"module": module} if isinstance(event, Op) else {}
        self.events.append(replace(event, stack=self.stack(*lines), location=place, **changes))

    def diagnosed(
        self, facts: RunFacts | None = None, *, costs: CostModel | None = None
    ) -> dict[str, Diagnosis]:
        """Return what the rules find, by code; costs are made up where none are given."""
        trace = StepTrace(
            events=tuple(self.events), stacks=tuple(self.stacks), facts=facts or RunFacts()
        )
        sources = Sources.of([SourceText(path=FILE, text=self.text)])
        device, host = (GPU, HOST) if costs is None else (find_device("A100"), reference_host())
        found = diagnose(
            RuleInput.of(trace, device, host, costs=costs or MadeUpCosts(), sources=sources)
        )
        return {one.finding.code: one for one in found}

    def findings(self, facts: RunFacts | None = None) -> dict[str, Finding]:
        return {code: one.finding for code, one in self.diagnosed(facts).items()}


def batch_of(rows: int) -> TensorSpec:
    return tensor(rows, SIZE, storage=BATCH, device="cuda:0")


def row() -> TensorSpec:
    return tensor(SIZE, storage=BATCH, device="cuda:0")


def weight(storage: int = WEIGHT) -> TensorSpec:
    return tensor(SIZE, SIZE, storage=storage, device="cuda:0")


def update(script: Script, *storages: int) -> None:
    """Let the optimizer work on these parameters."""
    for storage in storages:
        script.op(
            "_foreach_add_.List", weight(storage), lines=(99,), phase=Phase.OPTIMIZER, out=weight()
        )


SAMPLES = """\
def loss_of(x, centers):
    loss = 0
    for i in range(len(x)):
        d = (x[i] - centers).abs()
        loss = loss + d.max()
    return loss

value = loss_of(x, c)
"""


CROPS = """\
def cut(images, left):
    pieces = []
    for i in range(len(images)):
        x = left[i].item()
        pieces.append(images[i, x:])
    return torch.cat(pieces)

value = cut(images, left)
"""
SELECT = "aten.select.int"


def samples(count: int, text: str = SAMPLES) -> Script:
    script = Script(text)
    total = tensor(storage=50, device="cuda:0")
    script.op("mul.Tensor", batch_of(count), lines=(8,), out=batch_of(count))
    for _ in range(count):
        one = script.op("select.int", batch_of(count), lines=(8, 4), out=row())
        one = script.op("sub.Tensor", one, weight(), lines=(8, 4))
        one = script.op("abs.default", one, lines=(8, 4))
        one = script.op("max.default", one, lines=(8, 5))
        total = script.op("add.Tensor", total, one, lines=(8, 5))
    for _ in range(count):
        script.op("abs_backward", row(), lines=(8, 4), phase=Phase.BACKWARD)
    update(script, WEIGHT)
    return script


def test_a_loop_over_samples_is_found_at_its_for() -> None:
    finding = samples(10).findings()["LOOP001"]

    assert (finding.cause, finding.file, finding.line) == ("PER_SAMPLE_LOOP", FILE, 3)
    # 10 × 5 operators and 10 backward ones.
    assert "10 iterations issues 60 small operators" in finding.title
    # Of 10 × 5 + 10 + 2 operators of 100 ns, 5 + 1 + 2 remain.
    assert finding.gain_fraction == pytest.approx(1 - 8 / 62, abs=0.01)


def test_a_loop_that_only_reads_and_cuts_is_found() -> None:
    script = Script(CROPS)
    script.op("mul.Tensor", batch_of(10), lines=(8,), out=batch_of(10))
    for _ in range(10):
        script.add(Sync(kind="item", num_bytes=8), (8, 4))
        script.op("slice.Tensor", batch_of(10), lines=(8, 5), out=row())
    script.op("cat.default", batch_of(10), lines=(8, 6), out=batch_of(10))
    update(script, WEIGHT)

    assert script.findings()["LOOP001"].line == 3


def test_short_pauses_do_not_hide_a_loop() -> None:
    script = samples(10)
    firsts = [n for n, event in enumerate(script.events) if getattr(event, "name", "") == SELECT]
    for index in reversed(firsts):
        pause = HostWork(
            kind="script", duration_ns=100, phase=Phase.FORWARD, stack=script.stack(8, 4)
        )
        script.events.insert(index + 1, pause)

    assert "LOOP001" in script.findings()


@pytest.mark.parametrize("count", [1, 3])
def test_a_handful_of_samples_is_no_loop(count: int) -> None:
    assert "LOOP001" not in samples(count).findings()


def test_a_comprehension_counts_and_its_line_is_that_of_the_for() -> None:
    text = "value = sum(\n    f(x[i] - c)\n    for i in range(len(x))\n)\n"
    script = Script(text)
    for _ in range(8):
        one = script.op("sub.Tensor", row(), weight(), lines=(1, 2))
        script.op("abs.default", one, lines=(1, 2))
    assert script.findings()["LOOP001"].line == 3


def test_an_operator_that_begins_an_iteration_twice_is_counted_once() -> None:
    script = Script(SAMPLES)
    for _ in range(6):
        a = script.op("exp.default", row(), lines=(8, 4))
        b = script.op("exp.default", weight(), lines=(8, 4))
        script.op("max.default", a, b, lines=(8, 5))
    assert "6 iterations" in script.findings()["LOOP001"].title


def test_without_the_source_there_is_no_loop() -> None:
    assert "LOOP001" not in samples(10, text="").findings()


def test_levels_of_a_pyramid_are_no_samples() -> None:
    script = Script(SAMPLES)
    for level in range(5):
        size = 2**level
        part = tensor(size, storage=200 + level, device="cuda:0")
        script.op("abs.default", part, lines=(8, 4))
        script.op("max.default", part, lines=(8, 5))
    assert "LOOP001" not in script.findings()


def test_micro_batches_are_no_samples() -> None:
    script = Script(SAMPLES)
    for _ in range(6):
        one = script.op("sub.Tensor", row(), weight(), lines=(8, 4))
        script.op("max.default", one, lines=(8, 5))
        script.op("max_backward", one, lines=(8, 5), phase=Phase.BACKWARD)
    assert not {"LOOP001", "LOOP002"} & set(script.findings())


def test_batches_given_to_a_model_are_no_samples() -> None:
    script = samples(6)
    firsts = [i for i, event in enumerate(script.events) if "sub" in getattr(event, "name", "")]
    flags = dict.fromkeys(("is_training", "has_grad", "is_used_in_backward"), False)
    calls = tuple(
        model_call(first_event=first, num_events=2, num_samples=SIZE, **flags) for first in firsts
    )
    assert "LOOP001" not in script.findings(RunFacts(model_calls=calls))


def upload() -> Copy:
    return Copy(source="cpu", destination="cuda:0", num_bytes=32, storage=70)


@pytest.mark.parametrize(
    "between",
    [
        lambda: (HostWork(kind="script", duration_ns=900, phase=Phase.FORWARD),),
        lambda: (upload(), Sync(kind="item", num_bytes=8)),
    ],
)
def test_a_rollout_is_no_batch(between: Callable[[], Iterable[Event]]) -> None:
    script = Script(SAMPLES)
    for _ in range(8):
        for event in between():
            script.add(event, (8, 4))
        one = script.op("sub.Tensor", row(), weight(), lines=(8, 4))
        script.op("max.default", one, lines=(8, 5))
    assert "LOOP001" not in script.findings()


def test_a_loop_that_asks_a_simulator_is_no_batch() -> None:
    text = SAMPLES.replace("loss = loss + d.max()", "obs, r = self.env.step(d.max())")
    assert "LOOP001" not in samples(8, text).findings()


LAYERS = """\
def forward(x, layers):
    for layer in layers:
        x = layer(x)
    return x
"""


def layers(count: int, *, is_chained: bool, has_modules: bool) -> Script:
    script = Script(LAYERS)
    given = value = batch_of(SIZE)
    for i in range(count):
        module = f"layers.{i}" if has_modules else ""
        read = value if is_chained else given
        inner = script.op("mm.default", read, weight(200 + i), lines=(3,), module=module)
        value = script.op("tanh.default", inner, lines=(3,), module=module)
    update(script, *(200 + i for i in range(count)))
    return script


@pytest.mark.parametrize("has_modules", [True, False])
def test_layers_are_no_loop(has_modules: bool) -> None:
    script = layers(8, is_chained=True, has_modules=has_modules)
    assert not {"LOOP001", "LOOP002", "LAUNCH002"} & set(script.findings())


def test_heads_on_the_same_input_are_a_loop() -> None:
    found = layers(8, is_chained=False, has_modules=True).findings()
    assert found["LOOP001"].line == 2


RECURRENCE = """\
def forward(x, h):
    for t in range(x.size(1)):
        h = cell(x[:, t], h)
        outs.append(head(h))
    return h
"""


def recurrence(count: int, *, reads_input: bool = True) -> Script:
    script = Script(RECURRENCE)
    sequence = tensor(SIZE, count, SIZE, storage=BATCH, device="cuda:0")
    state = tensor(SIZE, SIZE, storage=90, device="cuda:0")
    for step in range(count):
        part = tensor(SIZE, SIZE, storage=BATCH, device="cuda:0")
        script.op("select.int", sequence, lines=(3,), out=part)
        made = [tensor(SIZE, SIZE, storage=1000 + 10 * step + i, device="cuda:0") for i in range(3)]
        script.op("mm.default", state, weight(), lines=(3,), out=made[0])
        other = part if reads_input else made[0]
        script.op("add.Tensor", made[0], other, lines=(3,), out=made[1])
        state = script.op("tanh.default", made[1], lines=(3,), out=made[2])
        script.op("mul.Tensor", state, weight(7), lines=(4,))
    for _ in range(count):
        script.op("tanh_backward", lines=(3,), phase=Phase.BACKWARD)
    update(script, WEIGHT, 7)
    return script


def test_a_recurrence_is_found_at_its_for() -> None:
    found = recurrence(20).diagnosed(costs=shipped_costs())

    assert "LOOP001" not in found
    finding = found["LOOP002"].finding
    assert (finding.cause, finding.line) == ("TIME_LOOP", 2)


def test_a_fused_layer_takes_the_place_of_the_cell_and_the_head_is_done_once() -> None:
    script = recurrence(20)
    edit = script.diagnosed(costs=shipped_costs())["LOOP002"].match.edit
    assert edit is not None

    after = edit.apply(StepTrace(events=tuple(script.events))).ops
    assert [op.name for op in after] == [
        "aten._cudnn_rnn.default",
        "aten.mul.Tensor",
        "aten._cudnn_rnn_backward.default",
        "aten._foreach_add_.List",
        "aten._foreach_add_.List",
    ]
    assert after[0].inputs[0].shape == (20, SIZE, SIZE)  # steps, sequences, features
    assert after[0].attributes["mode"] == 1  # a plain cell with tanh
    assert after[1].outputs[0].shape == (20 * SIZE,)


def test_a_short_recurrence_is_a_handful() -> None:
    assert "LOOP002" not in recurrence(3).diagnosed(costs=shipped_costs())


def test_a_recurrence_without_input_is_no_time_loop() -> None:
    # The same layer over and over: weights are shared, and no sequence is read.
    script = recurrence(20, reads_input=False)
    assert "LOOP002" not in script.diagnosed(costs=shipped_costs())


def test_a_running_sum_is_no_recurrence() -> None:
    found = samples(20).findings()
    assert "LOOP002" not in found
    assert "LOOP001" in found


SOLVER = """\
def integrate(f, y, steps):
    for _ in range(steps):
        y = y + 0.1 * f(y)
    return y

end = integrate(f, y, 200)
"""


def solver(count: int, text: str = SOLVER, lines: tuple[int, ...] = (6, 3)) -> Script:
    script = Script(text)
    state = tensor(SIZE, storage=90, device="cuda:0")
    for _ in range(count):
        change = script.op("tanh.default", state, lines=lines)
        change = script.op("mul.Tensor", change, lines=lines)
        state = script.op("add.Tensor", state, change, lines=lines)
    return script


def test_a_solver_of_the_script_is_found_at_its_loop() -> None:
    finding = solver(200).findings()["LAUNCH002"]

    assert (finding.cause, finding.line) == ("LAUNCH via SOLVER", 2)
    assert finding.gain_fraction > 0.5


def test_a_solver_of_few_launches_is_none() -> None:
    assert "LAUNCH002" not in solver(100).findings()


FROZEN = """\
for images, labels in loader:
    with torch.no_grad():
        features = backbone(images)
    loss = head(features)
"""


def frozen_step(*, is_trained: bool) -> Script:
    script = Script(FROZEN)
    for name in ("mm.default", "relu.default", "mm.default", "mm.default"):
        script.op(name, weight(5), lines=(3,), module="backbone")
    script.op("mm.default", weight(), lines=(4,), module="head")
    script.op("mm.default", weight(), lines=(4,), module="head", phase=Phase.BACKWARD)
    update(script, WEIGHT, *([5] if is_trained else []))
    return script


def test_a_frozen_backbone_is_advice_at_its_call() -> None:
    finding = frozen_step(is_trained=False).findings()["LAUNCH003"]
    assert (finding.cause, finding.line) == ("RECOMPUTE_FROZEN", 3)


def test_what_an_optimizer_updates_is_not_frozen() -> None:
    assert "LAUNCH003" not in frozen_step(is_trained=True).findings()
