from __future__ import annotations

import msgspec
import pytest

from breakeven.advise.rules.prec import doubles_as_floats, with_autocast
from breakeven.trace import (
    Call,
    Copy,
    Event,
    HostWork,
    Op,
    Phase,
    RunFacts,
    Settings,
    StepTrace,
)
from factories.cases import marked, rule_of, rules_of
from factories.layers import Blocks, cast, convolution, gain, gpu_case, linear, only
from factories.steps import at

AMP = Settings(autocast_dtype="bfloat16")
LARGE = {"batch": 2048, "inputs": 2048, "outputs": 2048}
SMALL = {"batch": 16, "inputs": 16, "outputs": 16}


@pytest.mark.parametrize("rule", rules_of("PREC"), ids=lambda rule: rule.code)
@pytest.mark.parametrize("device", ["A100", "T4", "GTX 1080"])
def test_a_small_step_in_float32_is_healthy(rule, device: str) -> None:
    assert rule.detect(gpu_case(*linear(**SMALL), device=device)) == ()


# --- float64 -------------------------------------------------------------------------------------


def test_a_step_in_float64_is_found_where_the_model_is_converted() -> None:
    call = Call(name="torch.nn.Module.double", location=at(6), count=1)
    case = gpu_case(
        *linear(**LARGE, dtype="float64"),
        device="GTX 1080",
        facts=RunFacts(calls=(call,)),
        source="x = torch.from_numpy(np.random.rand(8, 8))",
    )
    found = only(rule_of("PREC001"), case)

    assert found.location == at(6)
    # 1/32 of the rate of float32, and twice the bytes.
    assert gain(case, found) > 0.9


@pytest.mark.parametrize(
    "source",
    [
        "a = np.zeros(3, dtype=np.float64)\nw = torch.from_numpy(a).cuda()  # here",
        "y = torch.from_numpy(t.astype(np.float32))\nx = torch.as_tensor(a)  # here",
    ],
)
def test_where_doubles_come_from(source: str) -> None:
    case = gpu_case(*linear(**SMALL, dtype="float64"), source=source)
    found = only(rule_of("PREC001"), case)
    assert [found.location.line] == marked(source)


def test_what_the_run_recorded_comes_before_the_source() -> None:
    call = Call(name="torch.set_default_dtype", location=at(3), count=1, argument="torch.float64")
    case = gpu_case(
        *linear(**SMALL, dtype="float64"),
        facts=RunFacts(calls=(call,)),
        source="w = torch.zeros(3, dtype=torch.float64)",
    )
    assert only(rule_of("PREC001"), case).location == at(3)


def test_without_sources_the_first_operator_is_shown() -> None:
    case = gpu_case(*linear(**SMALL), *linear(**LARGE, dtype="float64", line=9))
    assert only(rule_of("PREC001"), case).location == at(9)


def test_some_numbers_in_float64_are_no_accident() -> None:
    blocks = Blocks()
    loss = blocks.tensor()
    as_double, double = cast(loss, "float64", blocks)
    per_row_cast, per_row = cast(blocks.tensor(64), "float64", blocks)
    total = Op(name="aten.sum.default", inputs=(per_row,), outputs=(double,))
    assert (
        rule_of("PREC001").detect(gpu_case(*linear(**LARGE), as_double, per_row_cast, total)) == ()
    )


def test_a_small_factorization_in_float64_is_no_accident() -> None:
    blocks = Blocks()
    matrix = blocks.tensor(64, 64, dtype="float64")
    factorized = Op(name="aten.linalg_cholesky_ex.default", inputs=(matrix,), outputs=(matrix,))
    assert rule_of("PREC001").detect(gpu_case(*linear(**LARGE), factorized)) == ()


def test_float32_halves_what_is_copied() -> None:
    copy = Copy(source="cpu", destination="cuda:0", num_bytes=800, dtype="float64")
    ints = msgspec.structs.replace(copy, dtype="int64")
    edited = doubles_as_floats(StepTrace(events=(copy, ints))).apply(StepTrace(events=(copy, ints)))
    assert [event.num_bytes for event in edited.copies] == [400, 800]
    assert edited.copies[0].dtype == "float32"


# --- tensor cores unused -------------------------------------------------------------------------


def test_large_products_in_full_float32() -> None:
    case = gpu_case(*linear(**LARGE))
    found = only(rule_of("PREC002"), case)

    assert found.location is None
    assert "set_float32_matmul_precision" in found.fix
    assert gain(case, found) > 0.4


def test_a_gpu_without_tf32_is_told_to_use_autocast() -> None:
    case = gpu_case(*linear(**LARGE), device="T4")
    found = only(rule_of("PREC002"), case)

    assert "autocast" in found.fix
    assert "set_float32_matmul_precision" not in found.fix
    assert gain(case, found) > 0.4


def test_launches_that_pace_half_of_the_step_do_not_hide_that_tensor_cores_idle() -> None:
    # Each product is followed by twenty launches of next to nothing.
    x = Blocks().tensor(16, 16)
    small = Op(name="aten.tanh.default", inputs=(x,), outputs=(x,))
    layer = (*linear(batch=512, inputs=512, outputs=512), *(small,) * 20)
    case = gpu_case(*layer * 12)
    found = only(rule_of("PREC002"), case)

    assert 0.3 < case.prediction.device_busy_ns / case.prediction.estimate.value_ns < 0.7
    assert 0.01 <= gain(case, found) < 0.08


def test_slow_loading_does_not_hide_that_tensor_cores_idle() -> None:
    loading = HostWork(kind="data", duration_ns=10**9)
    case = gpu_case(loading, *linear(**LARGE))
    assert gain(case, only(rule_of("PREC002"), case)) < 0.01


@pytest.mark.parametrize(
    ("events", "settings", "device"),
    [
        pytest.param(linear(**LARGE), Settings(allow_tf32_matmul=True), "A100", id="tf32"),
        pytest.param(linear(**LARGE, autocast="bfloat16"), AMP, "A100", id="autocast"),
        pytest.param(linear(**LARGE), None, "GTX 1080", id="no tensor cores"),
        pytest.param(linear(**SMALL), None, "A100", id="launch-bound"),
        pytest.param(convolution(dtype="float32"), None, "A100", id="tf32 is on by default"),
        pytest.param(linear(**LARGE, dtype="float64"), None, "A100", id="float64"),
    ],
)
def test_steps_that_tensor_cores_do_not_shorten(
    events: tuple[Event, ...], settings: Settings | None, device: str
) -> None:
    assert rule_of("PREC002").detect(gpu_case(*events, settings=settings, device=device)) == ()


def test_autocast_casts_weights_once_and_keeps_statistics() -> None:
    blocks = Blocks()
    x, weight = blocks.tensor(8, 16), blocks.tensor(16, 16)
    first, second = blocks.tensor(8, 16), blocks.tensor(8, 16)
    loss = blocks.tensor(8, 16)
    trace = StepTrace(
        events=(
            Op(name="aten.mm.default", inputs=(x, weight), outputs=(first,)),
            Op(name="aten.mm.default", inputs=(first, weight), outputs=(second,)),
            Op(name="aten._log_softmax.default", inputs=(second,), outputs=(loss,)),
            Op(
                name="aten._foreach_add_.List",
                inputs=(weight, second),
                outputs=(),
                phase=Phase.OPTIMIZER,
            ),
        )
    )
    edited = with_autocast(trace, "float16").apply(trace)

    assert [o.name.split(".")[1] for o in edited.ops] == [
        "_to_copy", "_to_copy", "mm", "mm", "_to_copy", "_log_softmax", "_to_copy", "_foreach_add_",
    ]  # fmt: skip
    products = [o for o in edited.ops if o.name == "aten.mm.default"]
    assert {s.dtype for o in products for s in (*o.inputs, *o.outputs)} == {"float16"}
    softmax = edited.ops[5]
    assert {s.dtype for s in (*softmax.inputs, *softmax.outputs)} == {"float32"}
    assert {s.dtype for s in edited.ops[-1].inputs} == {"float32"}


# --- sizes that miss the alignment ---------------------------------------------------------------


def test_products_that_miss_the_alignment() -> None:
    source = """
        class Net(nn.Module):
            def __init__(self):
                self.body = nn.Linear(2048, 2048)
                self.head = nn.Linear(2048, 2045)  # here
        """
    body = linear(**LARGE, dtype="float16", module="Net.body")
    head = linear(batch=2048, inputs=2048, outputs=2045, dtype="float16", module="Net.head")
    found = only(rule_of("PREC004"), gpu_case(*body, *head, source=source))

    assert [found.location.line] == marked(source)
    assert found.fix.endswith("2045 to 2048")
    assert len(found.events) == 3
    assert found.gain is not None
    # The head, at 0.7 of the body's rate, is 0.6 of the step; public reports go from no loss to a
    # factor of 3.5.
    assert found.gain.low_fraction == 0
    assert 0.1 < found.gain.fraction < found.gain.high_fraction < 0.6


@pytest.mark.parametrize(
    ("events", "device"),
    [
        pytest.param(linear(**LARGE, dtype="float16"), "A100", id="aligned"),
        pytest.param(
            linear(batch=2047, inputs=2048, outputs=2048, dtype="float16"), "A100", id="odd batch"
        ),
        pytest.param(linear(batch=2048, inputs=2047, outputs=2047), "A100", id="float32"),
        pytest.param(
            linear(batch=2048, inputs=2047, outputs=2047, dtype="bfloat16"), "T4", id="no bfloat16"
        ),
        pytest.param(
            linear(batch=2048, inputs=2047, outputs=2047, dtype="float16"),
            "GTX 1080",
            id="no tensor cores",
        ),
        pytest.param(
            linear(batch=8, inputs=61, outputs=61, dtype="float16"), "A100", id="launch-bound"
        ),
        pytest.param(convolution(channels_in=61, channels_out=61), "A100", id="convolution"),
    ],
)
def test_sizes_that_cost_nothing(events: tuple[Event, ...], device: str) -> None:
    assert rule_of("PREC004").detect(gpu_case(*events, device=device)) == ()
