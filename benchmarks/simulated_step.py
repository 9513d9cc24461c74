"""A training step of a multi-layer perceptron, written down by hand, and a sweep over it."""

from __future__ import annotations

from breakeven.cost import reference_host
from breakeven.device import load_catalogue
from breakeven.simulate import predict_steps
from breakeven.trace import Copy, Event, Op, Phase, ScaledTrace, StepTrace, Sync, TensorSpec

NUM_DEVICES = 40
NUM_BATCH_SIZES = 20
NUM_LAYERS = 37
WIDTH = 512
FIRST_BATCH_SIZE, SECOND_BATCH_SIZE = 16, 32


def simulate_sweep() -> int:
    """Predict the step on 40 devices at 20 batch sizes; return its number of operators."""
    scaled = ScaledTrace(mlp_step(FIRST_BATCH_SIZE), mlp_step(SECOND_BATCH_SIZE))
    traces = [scaled.at(2**exponent) for exponent in range(NUM_BATCH_SIZES)]
    predictions = predict_steps(traces, load_catalogue()[:NUM_DEVICES], reference_host())
    assert len(predictions) == NUM_DEVICES * NUM_BATCH_SIZES
    return len(traces[0].ops)


def mlp_step(batch_size: int) -> StepTrace:
    """Return one step with plain SGD: copies, forward, loss, backward, update, ``item``."""
    events: list[Event] = [
        Copy(source="cpu", destination="cuda:0", num_bytes=4 * batch_size * WIDTH)
    ]
    activation, weight, bias = (
        _tensor(shape) for shape in ((batch_size, WIDTH), (WIDTH, WIDTH), (WIDTH,))
    )
    weight_t = _tensor((WIDTH, WIDTH), layout="transposed")
    gradient_t = _tensor((WIDTH, batch_size), layout="transposed")
    for _ in range(NUM_LAYERS):
        events += [
            _op("aten.t.default", (weight,), weight_t),
            _op("aten.addmm.default", (bias, activation, weight_t), activation),
            _op("aten.relu.default", (activation,), activation),
        ]
    loss, backward = _tensor(()), Phase.BACKWARD
    events += [_op("aten.mse_loss.default", (activation, activation), loss)]
    for _ in range(NUM_LAYERS):
        events += [
            _op("aten.threshold_backward.default", (activation, activation), activation, backward),
            _op("aten.mm.default", (activation, weight), activation, backward),
            _op("aten.t.default", (activation,), gradient_t, backward),
            _op("aten.mm.default", (gradient_t, activation), weight, backward),
            _op("aten.sum.dim_IntList", (activation,), _tensor((1, WIDTH)), backward),
        ]
    parameters = (weight, bias) * NUM_LAYERS
    events += [
        Op(
            name="aten._foreach_add_.List",
            inputs=parameters + parameters,
            outputs=(),
            phase=Phase.OPTIMIZER,
        ),
        Sync(kind="item", num_bytes=4),
    ]
    return StepTrace(
        events=tuple(events),
        batch_size=batch_size,
        num_parameters=NUM_LAYERS * (WIDTH * WIDTH + WIDTH),
        peak_memory_bytes=4 * NUM_LAYERS * (2 * WIDTH * WIDTH + 2 * batch_size * WIDTH),
    )


def _tensor(shape: tuple[int, ...], layout: str = "contiguous") -> TensorSpec:
    return TensorSpec(shape=shape, dtype="float32", device="cuda:0", layout=layout)


def _op(
    name: str,
    inputs: tuple[TensorSpec, ...],
    output: TensorSpec,
    phase: Phase = Phase.FORWARD,
) -> Op:
    return Op(name=name, inputs=inputs, outputs=(output,), phase=phase)
