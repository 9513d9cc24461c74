"""Rules about copies and about what is on the device, on steps made up by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from breakeven.cost import Family, Kernel, Lowering
from breakeven.errors import Caveat
from breakeven.simulate import Finding, Severity
from breakeven.trace import (
    NEVER_ON_DEVICE,
    Copy,
    DeviceFault,
    Event,
    HostWork,
    LoaderFacts,
    Op,
    Phase,
    RunFacts,
    Settings,
)
from factories.cases import findings_of, made_up_case
from factories.steps import MadeUpCosts, at, loader_facts, model_call, op, tensor

BATCH, NOISE, INDEX, WHOLE = 1, 2, 3, 4
KIB = 1024


@dataclass(frozen=True, kw_only=True)
class Costs(MadeUpCosts):
    """An operator that a rule brings in takes the device 7 ns."""

    def lower(self, op: Op, settings: Settings) -> Lowering:
        if "kernel_ns" in op.attributes:
            return super().lower(op, settings)
        kernel = Kernel(family=Family.GATHER, flop=7, read_bytes=0, write_bytes=0)
        return Lowering(kernels=(kernel,))

    def host_op_ns(self, op: Op, lowering: Lowering, host: object) -> float:
        return op.attributes.get("host_ns", 0)


def findings(
    *events: Event, is_never_on_device: bool = False, caveats: tuple[Caveat, ...] = (), **known: Any
) -> dict[tuple[str, int | None], Finding]:
    """Return the findings about copies and devices, by code and line."""
    if is_never_on_device:
        caveats = (*caveats, NEVER_ON_DEVICE)
    case = made_up_case(*events, costs=Costs(), caveats=caveats, **known)
    return findings_of(case, "COPY", "DEV")


def copy(
    storage: int, num_bytes: int = 100, *, line: int = 3, is_pinned: bool = False, via: str = "",
    dtype: str = "float32", phase: Phase = Phase.FORWARD,
) -> Copy:  # fmt: skip
    return Copy(
        source="cpu",
        destination="cuda:0",
        num_bytes=num_bytes,
        is_pinned=is_pinned,
        non_blocking=is_pinned,
        location=at(line),
        storage=storage,
        via=via,
        dtype=dtype,
        phase=phase,
    )


# --- COPY001: pageable ----------------------------------------------------------------------------


def test_pageable_copy_of_the_batch() -> None:
    # Pinned, it keeps the device busy for 99 + 200, one of its bytes standing for the call.
    finding = findings(copy(BATCH), op(200, host_ns=10))["COPY001", 3]

    assert finding.cause == "H2D_PAGEABLE"
    # Of the step's 310 the host waits 200 for the kernel and 100 for the copy.
    assert finding.share_fraction == pytest.approx(300 / 310)
    assert finding.gain_fraction == pytest.approx(11 / 310)
    assert finding.evidence == "1 copy of 100 B from pageable memory in the recorded step"


def test_pinned_copy_that_does_not_block_is_healthy() -> None:
    assert findings(copy(BATCH, is_pinned=True), op(200)) == {}


def test_pinned_copy_that_blocks_is_told_too() -> None:
    blocking = Copy(source="cpu", destination="cuda:0", num_bytes=100, is_pinned=True)
    finding = findings(blocking, op(10))["COPY001", None]
    assert "pinned memory" in finding.title
    assert finding.fix == ".to(device, non_blocking=True)"


def test_copy_back_to_the_host_is_no_batch() -> None:
    back = Copy(source="cuda:0", destination="cpu", num_bytes=100)
    assert findings(op(100, host_ns=1), back) == {}


def loader(**changes: object) -> LoaderFacts:
    return loader_facts(location=at(30), **changes)


def test_a_framework_that_copies_is_told_at_the_loader() -> None:
    batch = copy(BATCH, line=90, via="lightning.fabric.utilities.apply_func")
    assert set(findings(batch, op(9), facts=RunFacts(loaders=(loader(),)))) == {("COPY001", 30)}
    # Where the loader is right already, its user has nothing to change.
    pinned = RunFacts(loaders=(loader(pin_memory=True),))
    assert findings(batch, op(9), facts=pinned) == {}


def test_observations_of_a_simulator_are_no_batch() -> None:
    assert findings(copy(BATCH, 16), op(9)) == {}
    # Small labels beside a batch are part of it.
    assert ("COPY001", 5) in findings(copy(BATCH), copy(INDEX, 16, line=5), op(9))


def test_what_a_library_copies_for_itself_is_no_batch() -> None:
    assert findings(copy(BATCH, via="torch.nn.utils.rnn"), op(9)) == {}


def test_a_script_without_a_gpu_has_no_copies() -> None:
    found = findings(copy(BATCH), op(9), is_never_on_device=True, source="x = 1\n")
    assert found == {}


# --- COPY002, COPY003: made on the host -----------------------------------------------------------


def made(storage: int = NOISE, host_ns: float = 50, name: str = "aten.randn.default") -> Op:
    outputs = (tensor(25, storage=storage),)
    return op(30, host_ns=host_ns, name=name, outputs=outputs, device="cpu", line=2)


def test_tensor_made_on_the_host() -> None:
    scaled = op(
        5,
        host_ns=20,
        device="cpu",
        inputs=(tensor(25, storage=NOISE),),
        outputs=(tensor(25, storage=INDEX),),
    )
    found = findings(made(), scaled, copy(INDEX), op(200, host_ns=300))
    finding = found["COPY002", 3]

    assert set(found) == {("COPY002", 3)}
    assert finding.cause == "H2D_CREATE"
    # Host: 50 + 20, wait until the kernel of the step before ends at 200, copy 100, issue 300.
    # Made on the device, both operators take the host 70 to issue, and nothing waits.
    assert finding.share_fraction == pytest.approx((50 + 20 + 130 + 100) / 600)
    assert finding.gain_fraction == pytest.approx(1 - 370 / 600)


def gathered(index: int = NOISE) -> Op:
    return op(
        device="cpu",
        name="aten.index.Tensor",
        inputs=(tensor(1000, 3, storage=WHOLE), tensor(4, storage=index)),
        outputs=(tensor(4, 3, storage=BATCH),),
    )


def test_a_batch_gathered_on_the_host_is_a_batch() -> None:
    codes = {code for code, _ in findings(made(), gathered(), copy(BATCH), op(100))}

    assert "COPY001" in codes
    assert "COPY002" not in codes


def test_an_index_on_the_host_is_told_as_such() -> None:
    index = tensor(4, storage=INDEX, dtype="int64")
    chosen = op(9, name="aten.index.Tensor", inputs=(tensor(9, device="cuda:0"), index))
    finding = findings(copy(INDEX, 32, dtype="int64"), chosen)["COPY002", 3]
    assert "index" in finding.title


def wrapped(numel: int) -> Op:
    data = (tensor(numel, storage=BATCH),)
    return op(device="cpu", name="aten.lift_fresh.default", inputs=data, outputs=data)


def test_numbers_of_python_in_a_tensor() -> None:
    found = findings(wrapped(4), copy(BATCH, 16), op(100))

    assert set(found) == {("COPY003", 3)}
    assert found["COPY003", 3].cause == "H2D_SCALAR"
    # The copy of 16 ns waits for the kernel of the step before.
    assert found["COPY003", 3].gain_fraction == pytest.approx(16 / 116)


def test_data_of_numpy_is_a_batch() -> None:
    assert set(findings(wrapped(500), copy(BATCH, 2000), op(9))) == {("COPY001", 3)}
    # As many numbers as samples are their labels.
    assert set(findings(wrapped(8), copy(BATCH), op(9), batch_size=8)) == {("COPY001", 3)}


def test_the_source_tells_a_long_list_and_noise_of_numpy() -> None:
    events = (wrapped(500), copy(BATCH, 2000), op(9))
    rewards = "\n\nr = torch.tensor([t.reward for t in steps], device=device)\n"
    noise = "\n\nr = torch.from_numpy(np.random.randn(500)).to(device)\n"
    assert set(findings(*events, source=rewards)) == {("COPY003", 3)}
    assert set(findings(*events, source=noise)) == {("COPY002", 3)}


def test_what_the_loader_makes_is_a_batch() -> None:
    collate = op(device="cpu", outputs=(tensor(4, storage=BATCH),), phase=Phase.DATA)
    assert set(findings(collate, copy(BATCH), op(100))) == {("COPY001", 3)}


# --- COPY004: not resident ------------------------------------------------------------------------


def test_loaded_slices_of_data_that_fits() -> None:
    facts = RunFacts(loaders=(loader(data_bytes=10**6, is_indexed=True),))
    loading = HostWork(kind="data", duration_ns=500)
    labels = copy(INDEX, 20, line=5)
    found = findings(loading, copy(BATCH), labels, op(200, host_ns=10), facts=facts)
    finding = found["COPY004", 3]

    assert finding.cause == "DATA_NOT_RESIDENT"
    # Host: 500 to load, 120 to copy, 10 to issue, and the kernel of the step before was done by
    # then. On the device: 200, and 7 for each gather.
    assert finding.gain_fraction == pytest.approx(1 - 214 / 630)
    assert ("COPY001", 3) in found


@pytest.mark.parametrize(
    "facts",
    [
        loader(data_bytes=3 * 10**9, is_indexed=True),  # of 8 GB
        loader(data_bytes=10**6, is_indexed=False),  # augmented
        loader(data_bytes=0, is_indexed=True),  # from disk
    ],
)
def test_data_that_has_to_travel(facts: LoaderFacts) -> None:
    found = findings(copy(BATCH), op(9), facts=RunFacts(loaders=(facts,)))
    assert set(found) == {("COPY001", 3)}


def test_slices_by_hand_of_data_that_fits() -> None:
    finding = findings(gathered(index=90), copy(BATCH, 48), op(9))["COPY004", 3]
    assert "12 kB" in finding.evidence


# --- COPY005: wide --------------------------------------------------------------------------------


def cast(dtype: str, to: str, numel: int, storage: int, *, phase: Phase = Phase.FORWARD) -> Op:
    return op(
        8, host_ns=4000, name="aten._to_copy.default", device="cpu", line=2, phase=phase,
        inputs=(tensor(numel, storage=80, dtype=dtype),),
        outputs=(tensor(numel, storage=storage, dtype=to),),
    )  # fmt: skip


def test_bytes_are_made_wide_before_the_copy() -> None:
    size = 64 * KIB
    scaled = op(
        6, host_ns=3000, name="aten.div.Tensor", device="cpu", line=2,
        inputs=(tensor(size, storage=81),), outputs=(tensor(size, storage=BATCH),),
    )  # fmt: skip
    found = findings(cast("uint8", "float32", size, 81), scaled, copy(BATCH, 4 * size), op(100))
    finding = found["COPY005", 2]

    assert finding.cause == "H2D_WIDE"
    # Host: 4000 + 3000, and 4 bytes to copy per element. The narrow copy blocks too; cast and
    # division are issued in as long as they took on the host here, while the device waits.
    assert finding.gain_fraction == pytest.approx(1 - (size + 7000) / (4 * size + 7000), abs=0.01)


def test_a_loader_that_casts_each_sample() -> None:
    size = 32 * KIB
    samples = [cast("uint8", "float32", size, 81 + i, phase=Phase.DATA) for i in range(4)]
    stacked = op(
        name="aten.stack.default", device="cpu", phase=Phase.DATA,
        inputs=tuple(tensor(size, storage=81 + i) for i in range(4)),
        outputs=(tensor(4, size, storage=BATCH),),
    )  # fmt: skip
    found = findings(*samples, stacked, copy(BATCH, 16 * size), op(100))
    assert "uint8" in found["COPY005", 2].title


@pytest.mark.parametrize(
    "events",
    [
        (cast("float64", "float32", 64 * KIB, BATCH), copy(BATCH, 256 * KIB)),  # made narrower
        (cast("uint8", "float32", 64, BATCH), copy(BATCH, 256)),  # too small to matter
        (cast("uint8", "float32", 64 * KIB, 70), copy(BATCH, 256 * KIB)),  # another tensor
    ],
)
def test_copies_that_are_no_wider_than_they_need_be(events: tuple[Event, ...]) -> None:
    assert "COPY005" not in {code for code, _ in findings(*events, op(100))}


# --- DEV001, DEV002, DEV003 -----------------------------------------------------------------------


def test_a_line_that_raises_is_an_error() -> None:
    fault = DeviceFault(message="the target is still on the CPU", location=at(5))
    finding = findings(op(100, host_ns=90), faults=(fault,))["DEV001", 5]

    assert (finding.cause, finding.severity) == ("PART_ON_CPU", Severity.ERROR)
    assert finding.title == "on a GPU this line raises: the target is still on the CPU"
    assert (finding.share_fraction, finding.gain_fraction) == (0, 0)


LEFT_BEHIND = """\
    class Net(nn.Module):
        def __init__(self):
            self.body = nn.Linear(8, 8)
            self.head = nn.Identity()

        def forward(self, x):
            return self.head(self.body(x))

    model = Net()
    model.head = Head(8)
    other = Head(8)
    """


@pytest.mark.parametrize(
    ("module", "line"),
    [("Net.head", 10), ("Net.body.0", 3), ("Net", 9), ("Head", 7), ("Net.tail", 7), ("", 7)],
)
def test_a_module_that_was_left_behind_is_told_where_it_is_made(module: str, line: int) -> None:
    fault = DeviceFault(message="addmm combines tensors", location=at(7), module=module)
    told = findings(op(100, host_ns=90), faults=(fault,), source=LEFT_BEHIND)
    assert [place for place in told if place[0] == "DEV001"] == [("DEV001", line)]
    assert "line" in told["DEV001", line].title


DROPPED = """\
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = Net()
    for x, y in loader:
        x.to(device)
        loss = criterion(model(x), y)
    """
UNUSED = """\
    model = Net()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print("running on", device)
    """


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (DROPPED, 4),
        (UNUSED, 2),
        ("print(torch.cuda.is_available())\n", None),
        ("", None),  # the files are not known
    ],
)
def test_a_script_that_has_a_gpu_at_hand_and_does_not_use_it(source: str, line: int | None) -> None:
    found = findings(op(100), source=source, is_never_on_device=True)
    assert {key: finding.cause for key, finding in found.items()} == {
        ("DEV002", line): "NOT_ON_GPU"
    }


def test_the_line_that_makes_the_model_is_where_to_move_it() -> None:
    facts = RunFacts(model_calls=(model_call(location=at(9)),))
    found = findings(op(100), source=UNUSED, facts=facts, is_never_on_device=True)

    assert set(found) == {("DEV002", 1)}
    assert "line 2" in found["DEV002", 1].evidence


def test_a_trainer_that_is_kept_off_the_gpu() -> None:
    source = "print(torch.cuda.device_count())\nt = L.Trainer(\n    accelerator='cpu',\n)\n"
    assert set(findings(op(100), source=source, is_never_on_device=True)) == {("DEV002", 3)}


@pytest.mark.parametrize(
    "source",
    [
        "model = Net()\n",
        "trainer = L.Trainer(accelerator='cpu')\n",
        "device = torch.device('cpu')\nmodel = Net().to(device)\n",
        "parser.add_argument('--cuda', action='store_true')\nif args.cuda:\n    model.cuda()\n",
        "if torch.cuda.is_available():\n    torch.cuda.manual_seed_all(0)\n",
        "device = 'cuda' if torch.cuda.is_available() and wanted else 'cpu'\nmodel.to(device)\n",
    ],
)
def test_a_script_that_is_meant_for_the_cpu(source: str) -> None:
    assert findings(op(100), source=source, is_never_on_device=True) == {}


def test_a_module_moves_in_place() -> None:
    source = "device = 'cuda'\nmodel = Net()\nmodel.to(device)\nx = x.to(device)\n"
    fault = DeviceFault(message="no", location=at(9))
    assert set(findings(op(9), source=source, faults=(fault,))) == {("DEV001", 9)}


def layer(host_ns: float, phase: Phase = Phase.FORWARD, module: str = "head") -> Op:
    own = op(
        9, host_ns=host_ns, name="aten.addmm.default", device="cpu", line=6, phase=phase,
        inputs=(tensor(32, storage=40),), outputs=(tensor(32, storage=41),),
    )  # fmt: skip
    return msgspec.structs.replace(own, module=module)


def test_a_layer_on_the_host() -> None:
    found = findings(op(100), layer(400), op(100), layer(500, Phase.BACKWARD))
    finding = found["DEV003", 6]

    assert finding.cause == "PART_ON_CPU"
    # On the host 900 of the step; on the device it takes as long to issue here.
    assert finding.share_fraction == pytest.approx(1.0, abs=0.2)
    assert "gradients flow" in finding.evidence


def test_a_small_frozen_layer_on_the_host_is_not_told() -> None:
    assert findings(op(100_000), layer(400)) == {}
    assert ("DEV003", 6) in findings(op(1_000), layer(400))


def test_what_a_layer_on_the_host_computed_is_no_batch() -> None:
    features = op(
        host_ns=9, device="cpu", inputs=(tensor(32, storage=41),),
        outputs=(tensor(32, storage=42),),
    )  # fmt: skip
    found = findings(op(100), layer(400), features, copy(42, 4000), op(100))
    assert set(found) == {("DEV003", 6)}


@pytest.mark.parametrize(
    "event",
    [
        op(host_ns=500, name="aten.mul.Tensor", device="cpu", inputs=(tensor(32, storage=40),)),
        layer(500, Phase.DATA),
        layer(500, module=""),
    ],
)
def test_preparing_a_batch_is_no_part_of_the_model(event: Event) -> None:
    assert findings(op(100), event) == {}
