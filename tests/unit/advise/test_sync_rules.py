"""Rules about waits, on steps made up by hand."""

from __future__ import annotations

from textwrap import dedent

import msgspec
import pytest

from breakeven.advise.rule import Match
from breakeven.advise.rules.sync import use_of
from breakeven.simulate import Finding
from breakeven.source import SourceFile
from breakeven.trace import Copy, Event, HostWork, Phase, SourceText, Sync
from factories.cases import FILE, findings_of, made_up_case, marked, rule_of
from factories.steps import at, op, tensor

WEIGHT = 20


def findings(*events: Event, source: str = "") -> dict[tuple[str, int | None], Finding]:
    """Return the findings about waits, by code and line."""
    return findings_of(made_up_case(*events, source=source), "SYNC")


def sync(
    kind: str, line: int = 7, *, num_bytes: int = 4, storage: int = -1, via: str = "",
    phase: Phase = Phase.FORWARD,
) -> Sync:  # fmt: skip
    return Sync(
        kind=kind, num_bytes=num_bytes, location=at(line), storage=storage, via=via, phase=phase
    )


@pytest.mark.parametrize(
    ("wait", "code", "cause"),
    [
        (sync("item"), "SYNC001", "SYNC_ITEM"),
        (sync("float"), "SYNC001", "SYNC_ITEM"),
        (sync("print"), "SYNC001", "SYNC_ITEM"),
        (sync("format", via="tqdm.std"), "SYNC001", "SYNC_ITEM"),
        (sync("cpu"), "SYNC001", "SYNC_ITEM"),  # one element: a value, whichever way it is read
        (sync("item", via="torch.utils.tensorboard.writer"), "SYNC001", "SYNC_ITEM"),
        (sync("synchronize"), "SYNC002", "SYNC_EXPLICIT"),
        (sync("empty_cache"), "SYNC002", "SYNC_EXPLICIT"),
        (sync("nonzero"), "SYNC003", "SYNC_SHAPE"),
        (sync("mask"), "SYNC003", "SYNC_SHAPE"),
        (sync("unique"), "SYNC003", "SYNC_SHAPE"),
        (sync("cpu", num_bytes=400), "SYNC004", "SYNC_METRICS"),
        (sync("tolist", num_bytes=400), "SYNC004", "SYNC_METRICS"),
        (sync("item", via="torchmetrics.functional.auroc"), "SYNC004", "SYNC_METRICS"),
        (sync("bool", num_bytes=1), "SYNC005", "SYNC_BRANCH"),
        (sync("item", num_bytes=1), "SYNC005", "SYNC_BRANCH"),  # (x > 0).any().item()
        (sync("equal"), "SYNC005", "SYNC_BRANCH"),
        (sync("bool", via="torch.nn.utils.clip_grad"), "SYNC006", "SYNC_CLIP"),
        (sync("bool", via="torch.distributions.normal"), "SYNC007", "SYNC_DIST"),
        (sync("cpu", num_bytes=400, via="tensorboardX.summary"), "SYNC008", "LOG_HEAVY"),
    ],
)
def test_each_wait_belongs_to_one_rule(wait: Sync, code: str, cause: str) -> None:
    ((key, finding),) = findings(op(100, host_ns=90), wait).items()

    assert key == (code, 7)
    assert finding.cause == cause
    assert wait.kind in finding.evidence


@pytest.mark.parametrize(
    "via",
    [
        "torch.amp.grad_scaler",
        "torch.nn.modules.transformer",
        "transformers.trainer",
        "torchvision.ops.boxes",
    ],
)
def test_a_library_waits_for_reasons_of_its_own(via: str) -> None:
    assert findings(op(100, host_ns=90), sync("item", via=via)) == {}


def test_gain_and_share_of_a_sync_are_simulated() -> None:
    # With the sync, host and device take turns: 90 + 100. Without it the device's 100 remain.
    finding = findings(op(100, host_ns=90), sync("item"))["SYNC001", 7]

    assert finding.gain_fraction == pytest.approx(90 / 190)
    # The host waits from 90 to 190.
    assert finding.share_fraction == pytest.approx(100 / 190)
    assert finding.title == "the host reads a value from the GPU in every step"
    assert finding.evidence == "1 wait in the recorded step (item), 4 B read back"


def test_waits_are_grouped_by_line() -> None:
    found = findings(op(100), sync("item", 7), op(100), sync("item", 9), op(100), sync("item", 7))

    assert set(found) == {("SYNC001", 7), ("SYNC001", 9)}
    assert found["SYNC001", 7].title.endswith("2 times in every step")


def test_a_mask_is_one_finding_with_its_backward() -> None:
    found = findings(op(100), sync("mask"), op(10), sync("mask", phase=Phase.BACKWARD))
    assert set(found) == {("SYNC003", 7)}


def test_removing_one_of_two_waits_may_gain_nothing() -> None:
    # The second sync follows at once and waits just as long.
    found = findings(op(100, host_ns=90), sync("item", 7), sync("print", 8))
    assert [finding.gain_fraction for finding in found.values()] == [0, 0]


def test_a_wait_without_a_line_is_still_told() -> None:
    assert set(findings(op(100), Sync(kind="item"))) == {("SYNC001", None)}


def test_garbage_is_collected_in_every_step() -> None:
    work = HostWork(kind="gc", duration_ns=900, location=at(5))
    finding = findings(op(100, host_ns=100), work)["SYNC002", 5]

    assert finding.cause == "SYNC_EXPLICIT"
    assert finding.gain_fraction == pytest.approx(0.9)


def test_a_wait_beside_a_clock_is_meant() -> None:
    source = """\
        for x in loader:
            start = time.perf_counter()
            train(x)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        """
    assert findings(op(100), sync("synchronize", 4), source=source) == {}
    elsewhere = source.replace("    times.append", "    log()\n            times.append")
    assert set(findings(op(100), sync("synchronize", 4), source=elsewhere)) == {("SYNC002", 4)}


def test_one_hot_without_classes_is_a_size() -> None:
    largest = op(5, name="aten.max.default", line=7)
    zeros = op(5, name="aten.zeros.default", line=7)
    scatter = op(5, name="aten.scatter_.value", line=7)

    found = findings(largest, sync("item", num_bytes=8), zeros, scatter)
    assert set(found) == {("SYNC003", 7)}


def test_the_check_for_errors_of_large_matrices_is_told() -> None:
    def factored(size: int) -> Event:
        return op(9, name="aten.linalg_cholesky_ex.default", inputs=(tensor(size, size),))

    assert findings(factored(16), op(1), sync("linalg")) == {}
    assert "cholesky_ex" in findings(factored(512), op(1), sync("linalg"))["SYNC001", 7].fix


def test_the_checks_of_anomaly_detection_are_not_told_one_by_one() -> None:
    checked = op(5, name="aten._is_any_true.default", phase=Phase.BACKWARD)
    check = sync("item", num_bytes=1, phase=Phase.BACKWARD)

    assert findings(op(100), checked, check) == {}
    assert set(findings(op(100), check)) == {("SYNC005", 7)}


# --- parameters -----------------------------------------------------------------------------------


def update(count: int) -> Event:
    """Return an update of ``count`` parameters by the optimizer."""
    weights = tuple(tensor(5, storage=WEIGHT + i, device="cuda:0") for i in range(count))
    return op(9, name="aten._foreach_add_.List", phase=Phase.OPTIMIZER, inputs=weights)


def norms(count: int, name: str = "aten.linalg_vector_norm.default", line: int = 7) -> list[Event]:
    """Return ``float(p.norm())`` for each of ``count`` parameters."""
    events: list[Event] = []
    for index in range(count):
        weight = tensor(5, storage=WEIGHT + index, device="cuda:0")
        value = tensor(storage=100 + index, device="cuda:0")
        events += [
            op(5, name=name, inputs=(weight,), outputs=(value,), line=line),
            sync("float", line, storage=100 + index),
        ]
    return events


def test_norms_are_read_parameter_by_parameter() -> None:
    found = findings(*norms(3), update(3))

    assert set(found) == {("SYNC006", 7)}
    assert "3 times in every step" in found["SYNC006", 7].title


def test_one_norm_is_a_value() -> None:
    assert set(findings(*norms(1), update(1))) == {("SYNC001", 7)}


def test_norms_of_activations_are_values() -> None:
    # The optimizer works on other memory.
    elsewhere = tensor(5, storage=900, device="cuda:0")
    other = op(9, name="aten._foreach_add_.List", phase=Phase.OPTIMIZER, inputs=(elsewhere,))
    assert set(findings(*norms(3), other)) == {("SYNC001", 7)}


def test_statistics_of_each_weight_are_a_heavy_log() -> None:
    assert set(findings(*norms(3, "aten.mean.default"), update(3))) == {("SYNC008", 7)}


def weights_read(count: int) -> list[Event]:
    return [sync("cpu", num_bytes=20, storage=WEIGHT + index) for index in range(count)]


def test_weights_are_read_in_every_step() -> None:
    histogram = HostWork(kind="log", duration_ns=500, location=at(7))
    found = findings(op(9), *weights_read(3), histogram, update(3))

    assert set(found) == {("SYNC008", 7)}
    assert "500 ns of the host" in found["SYNC008", 7].evidence


def test_one_tensor_read_alone_is_no_heavy_log() -> None:
    assert set(findings(op(9), *weights_read(1), update(1))) == {("SYNC004", 7)}


def test_tensors_that_are_saved_after_the_loop_are_metrics() -> None:
    source = "for x in data:\n    kept.append(model(x).cpu().numpy())\nnp.save('kept.npy', kept)\n"
    assert set(findings(op(9), sync("cpu", 2, num_bytes=400), source=source)) == {("SYNC004", 2)}


@pytest.mark.parametrize("via", ["safetensors.torch", "torch.serialization"])
def test_the_reads_of_a_checkpoint_belong_to_saving(via: str) -> None:
    reads = [sync("cpu", num_bytes=20, storage=WEIGHT + i, via=via) for i in range(3)]
    assert findings(op(9), *reads, update(3)) == {}


@pytest.mark.parametrize(
    ("read", "code"),
    [("p.grad.norm().item()", "SYNC006"), ("p.grad.mean().item()", "SYNC008")],
)
def test_the_source_tells_of_a_loop_over_parameters(read: str, code: str) -> None:
    # After the update the gradients are those of the step before, which the optimizer here is not
    # seen to use.
    name = "aten.linalg_vector_norm.default" if "norm" in read else "aten.mean.default"
    source = f"for p in model.parameters():\n    values.append({read})\n"
    events = norms(3, name, line=2)

    assert set(findings(*events, source=source)) == {(code, 2)}
    assert set(findings(*events, source=source.replace("model.parameters()", "losses"))) == {
        ("SYNC001", 2)
    }


def test_lengths_that_are_packed_have_to_be_read() -> None:
    source = "packed = pack_padded_sequence(x, lengths.cpu())\n"
    assert findings(op(9), sync("cpu", 1, num_bytes=400), source=source) == {}


def test_the_progress_bar_of_lightning_reads_what_is_logged() -> None:
    source = """\
        def training_step(self, batch, index):
            self.log("loss", loss, prog_bar=True)
            self.log("lr", lr)
            self.log("error", error, prog_bar=True)
        """
    via = "lightning.fabric.utilities.apply_func"
    reads = (sync("item", 40, via=via), sync("item", 40, via=via))
    found = findings(op(9), *reads, source=source)

    assert set(found) == {("SYNC001", 2), ("SYNC001", 4)}
    assert findings(op(9), *reads, source=source.replace(", prog_bar=True", "")) == {}


# --- distributions --------------------------------------------------------------------------------

POLICY = """\
    dist = Categorical(logits=policy(x))
    action = dist.sample()
    loss = -dist.log_prob(action).mean()
    """


def test_waits_of_a_distribution_are_told_where_it_is_made() -> None:
    via = "torch.distributions.distribution"
    events = (op(9), sync("bool", 1, via=via), op(9), sync("bool", 3, via=via))
    found = findings(*events, source=POLICY)

    assert set(found) == {("SYNC007", 1)}
    assert "2 times in every step" in found["SYNC007", 1].title


def test_without_the_source_each_line_is_told() -> None:
    via = "torch.distributions.distribution"
    found = findings(op(9), sync("bool", 1, via=via), op(9), sync("bool", 3, via=via))
    assert set(found) == {("SYNC007", 1), ("SYNC007", 3)}


# --- round trips ----------------------------------------------------------------------------------


def forward() -> list[Event]:
    """Return a layer whose weight the optimizer will update, and what it computes."""
    weight = tensor(5, storage=WEIGHT, device="cuda:0")
    return [
        op(100, host_ns=10, name="aten.mm.default", inputs=(weight,),
           outputs=(tensor(5, storage=60, device="cuda:0"),)),
    ]  # fmt: skip


def backward() -> list[Event]:
    return [op(50, phase=Phase.BACKWARD), update(1)]


def upload(storage: int, line: int = 9, phase: Phase = Phase.FORWARD) -> Copy:
    return Copy(
        source="cpu", destination="cuda:0", num_bytes=100, storage=storage, location=at(line),
        phase=phase,
    )  # fmt: skip


def test_a_tensor_goes_to_the_host_and_back() -> None:
    work = HostWork(kind="script", duration_ns=700, phase=Phase.FORWARD)
    read = sync("cpu", 7, num_bytes=100, storage=60)
    events = (*forward(), read, work, upload(61), *backward())
    found = findings(*events)

    assert set(found) == {("SYNC009", 7)}
    # The last step's kernels end at 59, this one's at 159; 92 for the bytes beyond a number, 700
    # for the work, 100 for the copy. Without those the device is busy for 100 + 50 + 9.
    assert found["SYNC009", 7].gain_fraction == pytest.approx(1 - 159 / 1051)


def test_metrics_of_the_step_before_are_no_round_trip() -> None:
    read = sync("cpu", 7, num_bytes=100, storage=55)
    assert set(findings(read, upload(61), *forward(), *backward())) == {("SYNC004", 7)}


def test_a_batch_that_was_there_before_the_read_is_no_round_trip() -> None:
    read = sync("cpu", 7, num_bytes=100, storage=60)
    assert set(findings(*forward(), read, upload(59), *backward())) == {("SYNC004", 7)}


def test_the_source_tells_what_came_of_a_read() -> None:
    read = sync("cpu", 2, num_bytes=100, storage=60)
    events = (*forward(), read, upload(61, 3), *backward())
    source = """\
        out = model(x)
        scores = out.detach().cpu().numpy()
        other = torch.from_numpy(targets).to(device)
        loss = criterion(out, other)
        """
    assert set(findings(*events, source=source)) == {("SYNC004", 2)}
    used = source.replace("targets", "match(scores)")
    assert set(findings(*events, source=used)) == {("SYNC009", 2)}


@pytest.mark.parametrize(
    "source",
    [
        "\naction = policy(x).argmax().item()\nx, reward = env.step(action)\n",
        "\nx, reward = env.step(policy(x).argmax().item())\n",
        "def act(x):\n    return policy(x).argmax().item()\na = act(x)\ny = env.step(a)\n",
    ],
)
def test_what_a_simulator_is_given_has_to_be_read(source: str) -> None:
    assert findings(op(100), sync("item", 2), source=source) == {}


def test_what_an_optimizer_or_scheduler_is_given_does_not() -> None:
    source = "\nvalue = loss.item()\nscheduler.step(value)\n"
    assert set(findings(op(100), sync("item", 2), source=source)) == {("SYNC001", 2)}


def test_gradients_that_come_back_tell_of_a_part_on_the_host() -> None:
    read = sync("cpu", 7, num_bytes=400)
    part = op(host_ns=500, name="aten.nll.default", device="cpu", line=8, inputs=(tensor(100),))
    gradient = msgspec.structs.replace(part, phase=Phase.BACKWARD)
    events = (*forward(), read, part, gradient, upload(70, 7, Phase.BACKWARD), *backward())
    case = made_up_case(*events)
    assert ("DEV003", 8) in findings_of(case, "DEV")
    assert findings_of(case, "SYNC", "COPY") == {}


def test_an_average_of_the_weights_on_the_host() -> None:
    events: list[Event] = [*forward()]
    for index in range(4):
        events += [
            sync("cpu", 12, num_bytes=20, storage=WEIGHT + index),
            op(host_ns=50, name="aten.lerp_.Scalar", device="cpu", line=12, inputs=(tensor(5),)),
        ]
    case = made_up_case(*events, update(4))
    assert [code for code, _ in findings_of(case, "SYNC")] == ["SYNC004"]


ALL_AT_ONCE = "read all of them at once before the loop: .tolist()"

SLICES = """
    for i in range(count):
        x0, x1 = left[i].item(), right[i].item()  # here
        if x0 < 0 or x1 > width:
            x0, x1 = x0 + edge, x1 + edge
        pieces.append(picture[:, x0:x1])
"""
LOGS = """
    for i in range(count):
        total += losses[i].item()  # here
"""


@pytest.mark.parametrize(
    ("use", "source"),
    [
        ("slice", SLICES),
        ("slice", "n = lengths.max().item()  # here\nx = x[:, :n]"),
        ("slice", "x = x[:, : lengths.max().item()]  # here"),
        ("slice", "for t in range(int(lengths.max())):  # here\n    step(t)"),
        ("slice", "n = int(lengths.sum())  # here\nout = torch.zeros(n, 4)"),
        ("index", "row = table[i.item()]  # here"),
        ("index", "k = labels[0].item()  # here\ncounts[k] += 1"),
        ("branch", "if loss.item() > 10:  # here\n    stop()"),
        ("branch", "gap = error.item()  # here\nwhile gap > 0.1:\n    gap = gap / 2"),
        ("branch", "value = 1.0 if loss.item() > 1 else 0.0  # here"),
        ("branch", "found = [i for i in ids if heads[i].item() > 0]  # here"),
        ("limit", "x = torch.clamp(x, max=limit.item())  # here"),
        ("log", LOGS),
        ("log", "print(f'loss {loss.item():.3f}')  # here"),
        ("log", "value = loss.item()  # here\nhistory.append(value)"),
        ("log", "bar.set_postfix(loss=loss.item())  # here"),
        ("log", "text = f'{loss.item():.3f}'  # here\nif step % 100 == 0:\n    print(text)"),
        # What is sliced or indexed is read, and does not steer.
        ("log", "print(losses[0].item(), names[3:])  # here"),
        ("log", "history.append(loss.item())  # here\nprint(history[-10:])"),
        ("", "learn(loss.item())  # here"),
    ],
)
def test_a_value_is_used_for(use: str, source: str) -> None:
    (line,) = marked(source)

    assert use_of(SourceFile(SourceText(path=FILE, text=dedent(source))), line) == use


def test_a_tensor_as_an_index_is_read_without_a_call() -> None:
    source = SourceFile(SourceText(path=FILE, text="x = x[:n]"))

    assert use_of(source, 1, is_index=True) == "slice"
    assert use_of(source, 1) == ""


@pytest.mark.parametrize(
    ("num_reads", "source", "begins"),
    [
        (384, SLICES, ALL_AT_ONCE),
        (2, SLICES, "work out sizes and limits of slices on the CPU"),
        (384, "for i in ids:\n    use(x[i].item())  # here", ALL_AT_ONCE),
        (1, "use(x.item())  # here", "keep the value on the GPU (total += loss.detach())"),
        (384, LOGS, "keep the value on the GPU (total += loss.detach())"),
        (1, "row = table[i.item()]  # here", "index with the tensor itself"),
        (384, "for i in ids:\n    row = table[i.item()]  # here", "index with the whole tensor"),
    ],
)
def test_a_number_that_is_read(num_reads: int, source: str, begins: str) -> None:
    (found,) = detected("SYNC001", source, "item", num_bytes=4, num_reads=num_reads)

    assert found.fix.startswith(begins)


def test_a_tensor_and_a_branch_that_are_read() -> None:
    trees = (
        "for i in range(50):\n    heads = head[i].tolist()  # here\n    trees.append(tree(heads))"
    )
    (rows,) = detected("SYNC004", trees, "tolist", num_bytes=400, num_reads=50)
    test = "for i in range(50):\n    if subject[i] == 0:  # here\n        add(i)"
    (many,) = detected("SYNC005", test, "bool", num_bytes=1, num_reads=50)
    (one,) = detected("SYNC005", "if mask.any():  # here\n    skip()", "bool", 1, num_reads=1)

    assert rows.fix == ALL_AT_ONCE
    assert many.fix == f"{ALL_AT_ONCE}; or decide for all of them at once with torch.where"
    assert one.fix == "decide on the GPU with torch.where, or test every n-th step"


def detected(
    code: str, source: str, kind: str, num_bytes: int, *, num_reads: int
) -> tuple[Match, ...]:
    (line,) = marked(source)
    read = Sync(kind=kind, num_bytes=num_bytes, location=at(line))
    events: list[Event] = [event for _ in range(num_reads) for event in (op(100), read)]
    return rule_of(code).detect(made_up_case(*events, source=source))
