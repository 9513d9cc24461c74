from __future__ import annotations

import pytest

from breakeven.trace import (
    Call,
    HostWork,
    Location,
    ModelCall,
    Op,
    Phase,
    RunFacts,
    Sync,
)
from factories.cases import FILE, lines, made_up_case, marked, rule_of
from factories.steps import at, op, tensor

MS = 1_000_000


def call(name: str, line: int = 3, *, argument: str = "", step_count: int = 0, ms: float = 0):
    return Call(
        name=name,
        location=at(line),
        count=max(1, step_count),
        step_count=step_count,
        argument=argument,
        duration_ns=round(ms * MS),
    )


# --- anomaly detection ---------------------------------------------------------------------------


def checked_backward() -> tuple[Op | Sync, ...]:
    """Return one node of a backward pass, and the check that follows it."""
    name = "aten.{}.default"
    return (
        op(50, name=name.format("mm"), phase=Phase.BACKWARD),
        op(5, name=name.format("isnan"), phase=Phase.BACKWARD),
        op(5, name=name.format("_is_any_true"), phase=Phase.BACKWARD),
        Sync(kind="item", phase=Phase.BACKWARD),
    )


def test_anomaly_detection_is_told_where_it_is_switched_on() -> None:
    facts = RunFacts(
        is_anomaly_checked=True,
        calls=(call("torch.autograd.set_detect_anomaly", 4, argument="True"),),
    )
    events = (op(100), Sync(kind="item"), *checked_backward())
    (one,) = rule_of("RUN001").detect(made_up_case(*events, facts=facts))

    assert one.location == at(4)
    # Neither the step's own read nor its matrix product goes.
    assert one.events == (3, 4, 5)
    assert one.edit is not None
    assert set(one.edit.replaced) == {3, 4, 5}


@pytest.mark.parametrize("argument", ["False", "True"])
def test_anomaly_detection_that_is_off_in_the_step(argument: str) -> None:
    facts = RunFacts(calls=(call("torch.autograd.set_detect_anomaly", argument=argument),))
    source = "torch.autograd.set_detect_anomaly(args.debug)\n"
    assert rule_of("RUN001").detect(made_up_case(op(100), facts=facts, source=source)) == ()


# --- wrappers, builds, shapes --------------------------------------------------------------------


def test_data_parallel_is_found_at_its_call() -> None:
    facts = RunFacts(calls=(call("torch.nn.DataParallel", 2),))
    assert lines(rule_of("RUN002").detect(made_up_case(op(100), facts=facts))) == [2]


def test_other_ways_to_many_gpus_are_healthy() -> None:
    source = """\
    if torch.cuda.device_count() > 1:
        net = nn.DataParallel(net)
    net = nn.parallel.DistributedDataParallel(net)
    """
    assert rule_of("RUN002").detect(made_up_case(op(100), source=source)) == ()


def test_a_build_without_cuda_beside_a_gpu() -> None:
    def found(**facts: bool) -> int:
        return len(rule_of("RUN007").detect(made_up_case(op(100), facts=RunFacts(**facts))))

    assert found(has_nvidia_device=True) == 1
    assert found(has_nvidia_device=True, has_cuda_build=True) == 0
    assert found() == 0


# --- checkpoints ---------------------------------------------------------------------------------


def saves(step_count: int, ms: float, *, is_in_step: bool) -> list[int | None]:
    facts = RunFacts(
        num_steps=4, calls=(call("torch.save", 9, step_count=step_count, ms=ms * step_count),)
    )
    saved = HostWork(kind="save", duration_ns=round(ms * MS), location=at(9))
    events = (op(100, host_ns=10 * MS), *((saved,) if is_in_step else ()))
    return lines(rule_of("RUN004").detect(made_up_case(*events, facts=facts)))


@pytest.mark.parametrize(
    ("step_count", "ms", "is_in_step", "is_found"),
    [
        (4, 5, True, True),
        (2, 5, False, True),  # every other step: 2.5 of 12.5 ms
        (1, 500, False, False),  # once: perhaps before the first step, or every thousandth
        (4, 0.1, True, False),  # 1 % of the step
    ],
)
def test_checkpoints_of_every_step(
    step_count: int, ms: float, is_in_step: bool, is_found: bool
) -> None:
    assert saves(step_count, ms, is_in_step=is_in_step) == ([9] if is_found else [])


def test_the_gain_of_saving_rarely_is_what_saving_takes() -> None:
    saved = HostWork(kind="save", duration_ns=5 * MS, location=at(9))
    facts = RunFacts(num_steps=4, calls=(call("torch.save", 9, step_count=4, ms=20),))
    case = made_up_case(op(100, host_ns=10 * MS), saved, facts=facts)
    (one,) = rule_of("RUN004").detect(case)

    assert one.share_fraction == pytest.approx(1 / 3)
    assert one.edit is not None
    assert len(one.edit.apply(case.trace).events) == 1


# --- evaluation ----------------------------------------------------------------------------------

X, Y, HIDDEN, VALIDATED, TARGET = 1, 2, 3, 4, 5


def on_gpu(storage: int):
    return tensor(8, storage=storage, device="cuda:0")


def run(line: int, read: int, written: int, phase: Phase = Phase.FORWARD, **extra: str) -> Op:
    return op(
        10, host_ns=10, phase=phase, line=line, inputs=(on_gpu(read),), outputs=(on_gpu(written),)
    )


def model_call(line: int, first: int, stack: int, **changes: bool) -> ModelCall:
    """Return the call of a model, in training and used unless ``changes`` says otherwise."""
    flags = {"is_training": True, "has_grad": True, "is_used_in_backward": True, **changes}
    return ModelCall(
        model="Net", location=at(line), stack=stack, first_event=first, num_events=1, **flags
    )


LOOP = """\
def evaluate(model, x):
    with torch.no_grad():
        return model(x).mean().item()


for x, y in loader:
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    print(evaluate(model, x_val))  # here
"""
STACKS = ((at(7),), (at(10), Location(file=FILE, line=3, function="evaluate")))


def evaluated(*, is_read_by_backward: bool = False, source: str = LOOP, **changes: bool):
    flags = {"is_training": False, "has_grad": False, "is_used_in_backward": False, **changes}
    facts = RunFacts(model_calls=(model_call(7, 0, 0), model_call(3, 2, 1, **flags)))
    events = (
        run(7, X, HIDDEN),
        run(7, HIDDEN, 20, Phase.BACKWARD),
        run(3, Y, VALIDATED),
        run(3, VALIDATED, TARGET),
        Sync(kind="item", storage=TARGET, location=at(3)),
        run(8, TARGET if is_read_by_backward else X, 21, Phase.BACKWARD),
    )
    case = made_up_case(*events, facts=facts, source=source, stacks=STACKS)
    return rule_of("RUN003").detect(case)


def test_evaluation_in_every_step_is_told_where_the_loop_calls_it() -> None:
    (one,) = evaluated()

    assert lines((one,)) == marked(LOOP)
    # The forward pass, its mean and its read; not the backward pass after it.
    assert one.events == (2, 3, 4)
    assert "recorded" not in one.title


def test_evaluation_that_records_for_a_backward_pass() -> None:
    (one,) = evaluated(has_grad=True)
    assert one.title.endswith("recorded for a backward pass")


def test_evaluation_in_training_mode_is_known_by_its_name() -> None:
    assert lines(evaluated(is_training=True)) == marked(LOOP)


@pytest.mark.parametrize("is_training", [True, False])
def test_a_policy_that_acts_is_no_evaluation(is_training: bool) -> None:
    source = LOOP.replace("evaluate", "act").replace("x_val", "state")
    stacks = (STACKS[0], (at(10), Location(file=FILE, line=3, function="act")))
    flags = {"is_training": is_training, "has_grad": False, "is_used_in_backward": False}
    facts = RunFacts(model_calls=(model_call(7, 0, 0), model_call(3, 1, 1, **flags)))
    events = (run(7, X, HIDDEN), run(3, Y, VALIDATED))
    case = made_up_case(*events, facts=facts, source=source, stacks=stacks)
    assert rule_of("RUN003").detect(case) == ()


def test_a_teacher_whose_output_the_loss_reads_is_no_evaluation() -> None:
    assert evaluated(is_read_by_backward=True) == ()


def test_a_step_that_only_evaluates_is_not_judged() -> None:
    flags = {"is_training": False, "is_used_in_backward": False}
    facts = RunFacts(model_calls=(model_call(3, 0, 1, **flags),))
    case = made_up_case(run(3, X, HIDDEN), facts=facts, source=LOOP, stacks=STACKS)
    assert rule_of("RUN003").detect(case) == ()


# --- graphs kept alive ---------------------------------------------------------------------------

LOOP_WITH = """\
total = 0
for x, y in loader:
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    {}
"""


def kept(source: str) -> list[int | None]:
    return lines(rule_of("RUN005").detect(made_up_case(op(100), source=source)))


@pytest.mark.parametrize(
    "statement",
    [
        "total += loss",
        "total = total + loss",
        "total += loss * x.size(0)",
        "total += loss.mean() / len(loader)",
        "losses.append(loss)",
        "self.history['loss'].append(loss)",
        "self.total += loss",
    ],
)
def test_sums_and_lists_that_keep_the_graph(statement: str) -> None:
    assert kept(LOOP_WITH.format(statement)) == [6]


@pytest.mark.parametrize(
    "statement",
    [
        "total += loss.item()",
        "total += loss.detach()",
        "total += float(loss) * x.size(0)",
        "total += loss.data",
        "total += x.size(0)",
        "losses.append(loss.detach().cpu())",
        "losses.append(f'{loss:.3f}')",
        "loss = loss.detach(); total += loss",
        "total = loss",  # keeps one graph, not all
        "total = 0; total += loss",  # begins anew in every step
        "optimizer.zero_grad()",
    ],
)
def test_sums_and_lists_without_history(statement: str) -> None:
    assert kept(LOOP_WITH.format(statement)) == []


def test_a_loss_of_detached_parts_has_history() -> None:
    loop = LOOP_WITH.replace("criterion(model(x), y)", "criterion(model(x), teacher(x).detach())")
    assert kept(loop.format("total += loss")) == [6]


def test_sums_under_no_grad_have_no_history() -> None:
    assert kept(LOOP_WITH.format("with torch.no_grad():\n        total += loss")) == []


def test_a_sum_of_losses_that_is_what_backward_starts_from() -> None:
    source = """\
    for batch in loader:
        total = 0
        for head in heads:
            loss = head(batch)
            total += loss
        total.backward()
        optimizer.step()
    """
    assert kept(source) == []


def test_a_sum_over_the_parts_of_a_step_is_freed_with_it() -> None:
    source = """\
    for batch in loader:
        total = 0
        for part in batch.chunk(4):
            loss = model(part).sum()
            loss.backward()
            total += loss
        optimizer.step()
    """
    assert kept(source) == []


def test_the_sum_of_an_epoch_is_kept_through_it() -> None:
    source = """\
    for epoch in range(3):
        running = 0.0
        for x in loader:
            loss = model(x).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            running += loss  # here
        print(running)
    """
    assert kept(source) == marked(source)


def test_losses_that_a_trainer_is_given_back() -> None:
    source = """\
    class Lit(L.LightningModule):
        def training_step(self, batch, index):
            loss = self.net(batch).sum()
            parts = []
            parts.append(loss)
            self.losses.append(loss)  # here
            return loss
    """
    assert kept(source) == marked(source)


@pytest.mark.parametrize(
    ("statement", "is_kept"),
    [
        ("losses.append(train_step(x))", True),
        ("total += train_step(x)", True),
        ("loss = train_step(x); losses.append(loss)", True),
        ("losses.append(train_step(x).item())", False),
        ("total += float(train_step(x))", False),
        ("loss = train_step(x)", False),
    ],
)
def test_the_loss_that_a_function_returns(statement: str, is_kept: bool) -> None:
    source = f"""\
def train_step(x):
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    return loss

for x in loader:
    {statement}
"""
    assert kept(source) == ([8] if is_kept else [])
    assert kept(source.replace("return loss", "return loss.detach()")) == []


def test_what_a_step_method_adds_outlives_it() -> None:
    source = """\
    class Trainer:
        def step(self, x):
            parts = []
            loss = self.model(x).sum()
            loss.backward()
            self.optimizer.step()
            parts.append(loss)
            self.losses.append(loss)  # here
            history.append(loss)  # here
            self.total += loss.item()
    """
    assert kept(source) == marked(source)


def test_evaluation_below_the_line_that_trains_leaves_the_training() -> None:
    source = """\
    arguments = TrainingArguments(eval_steps=1)
    Trainer(model, arguments).train()  # here
    """
    flags = {"is_training": False, "has_grad": False, "is_used_in_backward": False}
    facts = RunFacts(model_calls=(model_call(2, 0, 0), model_call(2, 2, 0, **flags)))
    events = (run(2, X, HIDDEN), run(2, HIDDEN, 20, Phase.BACKWARD), run(2, Y, VALIDATED))
    case = made_up_case(*events, facts=facts, source=source, stacks=((at(2),),))
    (one,) = rule_of("RUN003").detect(case)

    assert lines((one,)) == marked(source)
    assert one.events == (2,)


def test_an_expression_nested_deeply_breaks_nothing() -> None:
    assert kept(LOOP_WITH.format("total += loss" + " + 1" * 2000)) in ([6], [])
    assert kept(LOOP_WITH.format("total += loss" + " + 1" * 100)) == [6]
