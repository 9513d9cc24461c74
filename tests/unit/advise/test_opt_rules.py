from __future__ import annotations

import pytest
from msgspec.structs import replace

from breakeven.advise import Diagnosis, Finding, RuleInput, Sources, diagnose
from breakeven.cost import reference_host
from breakeven.device import find_device
from breakeven.trace import (
    Copy,
    Event,
    HostWork,
    Location,
    Op,
    OptimizerFacts,
    Phase,
    RunFacts,
    SourceText,
    StepTrace,
    Sync,
    TensorSpec,
)
from factories.cases import made_up_case
from factories.steps import at, op, tensor

NUM = 10
PARAMETER, GRADIENT, AVERAGE = 20, 40, 60


def own(base: int, i: int, *, device: str = "cuda:0") -> TensorSpec:
    return tensor(5, storage=base + i, device=device)


def training(*, adds_to_gradients: bool = False) -> tuple[Op, ...]:
    """Return the forward and backward pass of a layer for each parameter."""
    name = "aten.add_.Tensor" if adds_to_gradients else "aten.mm.default"
    forward = [
        op(10, host_ns=100, name="aten.mm.default", inputs=(own(PARAMETER, i),), line=3)
        for i in range(NUM)
    ]
    backward = [
        op(
            10, host_ns=100, name=name, phase=Phase.BACKWARD, line=3,
            inputs=(own(GRADIENT, i),), outputs=(own(GRADIENT, i),),
        )
        for i in range(NUM)
    ]  # fmt: skip
    return (*forward, *backward)


def listed(name: str, *bases: int, line: int = 9) -> Op:
    inputs = tuple(own(base, i) for base in bases for i in range(NUM))
    return op(20, host_ns=200, name=name, phase=Phase.OPTIMIZER, line=line, inputs=inputs)


def looped(name: str, *bases: int, line: int, phase: Phase = Phase.OPTIMIZER) -> tuple[Op, ...]:
    return tuple(
        op(
            10, host_ns=100, name=name, phase=phase, line=line,
            inputs=tuple(own(base, i) for base in bases), outputs=(own(bases[0], i),),
        )
        for i in range(NUM)
    )  # fmt: skip


FUSED = (listed("aten._fused_adam_.default", PARAMETER, GRADIENT),)


def diagnosed(
    *events: Event, text: str = "", optimizers: tuple[OptimizerFacts, ...] = ()
) -> dict[str, list[Diagnosis]]:
    facts = RunFacts(optimizers=optimizers)
    case = made_up_case(*events, source=text, num_parameters=5 * NUM, facts=facts)
    found: dict[str, list[Diagnosis]] = {}
    for one in diagnose(case):
        found.setdefault(one.finding.code, []).append(one)
    return found


def finding(code: str, found: dict[str, list[Diagnosis]]) -> Finding:
    (one,) = found[code]
    return one.finding


def adam(**options) -> OptimizerFacts:
    return OptimizerFacts(name="Adam", location=at(2), num_tensors=NUM, **options)


STEP = """\
model = Net()
optimizer = torch.optim.Adam(model.parameters())
loss = model(x)
for batch in loader:
    pass
    pass
    pass
    pass
    optimizer.step()
"""


def test_an_optimizer_told_to_loop_is_found_where_it_is_made() -> None:
    events = (*training(), *looped("aten.addcdiv_.default", PARAMETER, GRADIENT, line=9))
    one = finding("OPT001", diagnosed(*events, text=STEP, optimizers=(adam(foreach=False),)))

    assert (one.cause, one.line) == ("OPT_LOOP", 2)
    # Ten of thirty equal operators become one.
    assert one.gain_fraction == pytest.approx(9 / 30)


def test_an_optimizer_that_knows_no_other_way_is_not_at_fault() -> None:
    events = (*training(), *looped("aten.addcdiv_.default", PARAMETER, GRADIENT, line=9))
    assert "OPT001" not in diagnosed(*events, text=STEP, optimizers=(adam(),))


def test_a_hand_written_update_is_found_where_it_writes_to_the_parameters() -> None:
    text = "for p in ps:\n    m.mul_(0.9)\n    m.add_(p.grad)\n    p.sub_(lr * m)\n"
    events = (
        *training(),
        *looped("aten.mul_.Tensor", AVERAGE, line=2),
        *looped("aten.add_.Tensor", AVERAGE, GRADIENT, line=3),
        *looped("aten.sub_.Tensor", PARAMETER, AVERAGE, line=4),
    )
    assert finding("OPT001", diagnosed(*events, text=text)).line == 4


def test_a_moving_average_of_the_weights() -> None:
    average = looped("aten.lerp_.Scalar", AVERAGE, PARAMETER, line=12, phase=Phase.FORWARD)
    assert finding("OPT001", diagnosed(*training(), *FUSED, *average)).line == 12


def test_a_penalty_parameter_by_parameter() -> None:
    penalty = looped("aten.pow.Tensor_Scalar", PARAMETER, line=7, phase=Phase.FORWARD)
    changed = tuple(replace(one, outputs=(own(500, i),)) for i, one in enumerate(penalty))
    assert finding("OPT001", diagnosed(*changed, *training(), *FUSED)).line == 7


def test_in_place_work_on_other_tensors_updates_nothing() -> None:
    masks = looped("aten.masked_fill_.Scalar", 700, line=6, phase=Phase.FORWARD)
    assert "OPT001" not in diagnosed(*masks, *training(), *FUSED)


LISTS = (
    listed("aten._foreach_lerp_.Scalar", AVERAGE, GRADIENT),
    listed("aten._foreach_mul_.Scalar", 80),
    listed("aten._foreach_addcdiv_.ScalarList", PARAMETER, AVERAGE, 80),
)


def real_findings(
    *events: Event, size: int = 8, optimizers: tuple[OptimizerFacts, ...]
) -> dict[str, Diagnosis]:
    """Return what is found on a real device, in a step of as many layers as parameters."""
    batch = tensor(size, size, device="cuda:0")
    weights = [tensor(size, 64, storage=PARAMETER + i, device="cuda:0") for i in range(NUM)]
    layers = [
        Op(name="aten.mm.default", inputs=(batch, weight), outputs=(batch,)) for weight in weights
    ]
    trace = StepTrace(events=(*layers, *events), facts=RunFacts(optimizers=optimizers))
    found = diagnose(RuleInput.of(trace, find_device("A100"), reference_host()))
    return {one.finding.code: one for one in found}


def test_a_fused_update_is_advice() -> None:
    one = real_findings(*LISTS, optimizers=(adam(),))["OPT002"]

    assert (one.finding.cause, one.finding.line) == ("OPT_UNFUSED", 2)
    assert one.match.edit is not None
    fused = [new for own in one.match.edit.replaced.values() for new in own]
    update = [event for event in fused if isinstance(event, Op)]
    assert [o.name for o in update] == ["aten._fused_adam_.default"]
    assert len(update[0].inputs) == 5 * NUM  # parameters, gradients, two moments, counters
    assert one.finding.gain_fraction > 0


@pytest.mark.parametrize(
    "optimizer",
    [
        adam(fused=True),
        adam(foreach=False),
        OptimizerFacts(name="Adam", location=None, num_tensors=NUM, is_from_torch=False),
        OptimizerFacts(name="LBFGS", location=None, num_tensors=NUM),
    ],
)
def test_who_gets_no_advice(optimizer: OptimizerFacts) -> None:
    assert "OPT002" not in real_findings(*LISTS, optimizers=(optimizer,))


def test_an_update_that_hardly_counts_needs_no_advice() -> None:
    assert "OPT002" not in real_findings(*LISTS, size=16_384, optimizers=(adam(),))


def test_gradients_that_are_zeroed_and_added_to() -> None:
    zeroing = replace(listed("aten._foreach_zero_.default", GRADIENT, line=5), phase=Phase.FORWARD)
    events = (zeroing, *training(adds_to_gradients=True), *FUSED)
    one = finding("OPT003", diagnosed(*events))

    assert (one.cause, one.line) == ("ZERO_GRAD", 5)
    # Of 200 + 10 × 100 + 10 × 100 + 200 the zeros and the additions go.
    assert one.gain_fraction == pytest.approx(1200 / 2400)


def test_gradients_zeroed_by_hand_belong_to_one_rule() -> None:
    zeroing = looped("aten.zero_.default", GRADIENT, line=5, phase=Phase.FORWARD)
    found = diagnosed(*zeroing, *training(adds_to_gradients=True), *FUSED)
    assert finding("OPT003", found).line == 5
    assert "OPT001" not in found


def test_zeros_that_are_no_gradients() -> None:
    zeroing = looped("aten.zero_.default", 700, line=5, phase=Phase.FORWARD)
    assert "OPT003" not in diagnosed(*zeroing, *training(), *FUSED)


def test_an_optimizer_on_the_host() -> None:
    updates = [
        op(
            host_ns=1000, name="aten.add_.Tensor", phase=Phase.OPTIMIZER, line=9, device="cpu",
            inputs=(own(80, i, device="cpu"), own(100, i, device="cpu")),
        )
        for i in range(NUM)
    ]  # fmt: skip
    copies = [
        Copy(source="cuda:0", destination="cpu", num_bytes=20, phase=Phase.OPTIMIZER, storage=1)
    ] * NUM
    one = finding("OPT005", diagnosed(*training(), *copies, *updates))

    assert (one.cause, one.line) == ("PART_ON_CPU", 9)
    assert one.gain_fraction > 0


def test_counters_on_the_host_are_as_they_should_be() -> None:
    counters = [
        op(host_ns=10, name="aten.add_.Tensor", phase=Phase.OPTIMIZER, line=9, device="cpu",
           inputs=(tensor(storage=80 + i),))
        for i in range(NUM)
    ]  # fmt: skip
    assert "OPT005" not in diagnosed(*training(), *counters, *FUSED)


TABLE = """\
class Net(nn.Module):
    def __init__(self):
        self.users = nn.Embedding(1_000_000, 32)
        self.kinds = nn.Embedding(20, 32)
"""


def lookup(rows: int, num_indices: int, module: str = "users") -> Op:
    return Op(
        name="aten.embedding_dense_backward.default",
        inputs=(tensor(num_indices, 32, device="cuda:0"),
                tensor(num_indices, device="cuda:0", dtype="int64")),
        outputs=(tensor(rows, 32, device="cuda:0"),),
        phase=Phase.BACKWARD,
        location=at(30),
        module=module,
    )  # fmt: skip


def embedding(*lookups: Op, text: str = TABLE) -> list[Finding]:
    table = lookups[-1].outputs[0]
    update = Op(
        name="aten._foreach_addcdiv_.List", inputs=(table,) * 3, outputs=(), phase=Phase.OPTIMIZER
    )
    trace = StepTrace(events=(*lookups, update))
    sources = Sources.of([SourceText(path="net.py", text=text)])
    found = diagnose(RuleInput.of(trace, find_device("A100"), reference_host(), sources=sources))
    return [one.finding for one in found if one.finding.code == "OPT004"]


def test_a_dense_gradient_of_a_huge_table_is_found_where_the_table_is_made() -> None:
    (one,) = embedding(lookup(1_000_000, 512))

    assert (one.cause, one.file, one.line) == ("EMBED_DENSE", "net.py", 3)
    assert one.gain_fraction > 0.5


def test_two_lookups_in_one_table_are_one_finding() -> None:
    (one,) = embedding(lookup(1_000_000, 512), lookup(1_000_000, 100))
    assert "looks 612 of them up" in one.title


def test_without_the_source_it_is_the_line_of_the_lookup() -> None:
    (one,) = embedding(lookup(1_000_000, 512), text="pass")
    assert one.line == 30


@pytest.mark.parametrize(("rows", "num_indices"), [(1_000_000, 200_000), (10_000, 16)])
def test_tables_that_are_used_or_small(rows: int, num_indices: int) -> None:
    assert embedding(lookup(rows, num_indices)) == []


def test_a_table_that_is_tied_to_the_output_layer_has_a_dense_gradient_anyway() -> None:
    gradient = lookup(1_000_000, 512)
    table = replace(gradient.outputs[0], storage=7)
    read = replace(gradient, name="aten.embedding.default", phase=Phase.FORWARD)
    read = replace(read, inputs=(table, gradient.inputs[1]), outputs=gradient.inputs[:1])
    head = replace(read, name="aten.t.default", inputs=(table,), outputs=())

    assert len(embedding(read, gradient)) == 1
    assert embedding(read, head, gradient) == []


def test_a_table_that_is_a_small_part_of_the_model_stays() -> None:
    table = lookup(1_000_000, 512)
    trace = StepTrace(events=(table,), num_parameters=100_000_000)
    found = diagnose(RuleInput.of(trace, find_device("A100"), reference_host()))
    assert "OPT004" not in {one.finding.code for one in found}


ROLLOUT = """\
import numpy as np

class World:
    def advance(self, action):
        return np.tanh(action)

def train():
    for _ in range(10):
        action = policy(state)
        state = world.advance(action)
        value = critic(state)
        value = critic(value)
"""


def pause(line: int, function: str = "train") -> HostWork:
    place = Location(file="train.py", line=line, function=function)
    return HostWork(kind="script", duration_ns=9_000, location=place)


def inside(line: int) -> Op:
    return replace(
        op(1_000, host_ns=10), location=Location(file="train.py", line=line, function="train")
    )


def test_script_work_is_found_at_the_line_that_works() -> None:
    # A pause is recorded at the next operator, one line later.
    one = finding("HOST001", diagnosed(inside(9), pause(11), inside(11), text=ROLLOUT))

    assert (one.cause, one.line) == ("ENV_BOUND", 10)
    assert one.gain_fraction > 0.5


def test_a_pause_in_which_the_source_shows_no_work_is_pythons_own() -> None:
    assert "HOST001" not in diagnosed(inside(11), pause(12), inside(12), text=ROLLOUT)


def test_numpy_after_a_read_belongs_to_the_round_trip() -> None:
    text = ROLLOUT.replace("world.advance(action)", "np.tanh(action)")
    read = Sync(kind="cpu", num_bytes=40, location=inside(9).location)

    assert finding("HOST001", diagnosed(inside(9), pause(11), inside(11), text=text)).line == 10
    assert "HOST001" not in diagnosed(inside(9), read, pause(11), inside(11), text=text)


def test_an_optimizer_of_the_users_is_no_simulator() -> None:
    text = ROLLOUT.replace("world.advance", "optimizer.advance")
    assert "HOST001" not in diagnosed(inside(9), pause(11), inside(11), text=text)


def test_without_the_source_a_pause_is_work() -> None:
    assert finding("HOST001", diagnosed(inside(9), pause(11), inside(11))).line == 11


def test_work_that_hardly_counts_is_no_finding() -> None:
    short = replace(pause(11), duration_ns=50)
    long = replace(inside(11), attributes={**inside(11).attributes, "kernel_ns": [10_000]})
    assert "HOST001" not in diagnosed(inside(9), short, long, text=ROLLOUT)
