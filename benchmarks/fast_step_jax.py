"""The networks of ``fast_step.py`` under JAX, as far as they consist of linear layers.

A step is one function that ``jax.jit`` compiles: value and gradient, and the update. Several steps
in a call are ``jax.lax.scan`` over batches that it takes from the data itself. Needs ``jax``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from torch import Tensor, nn

_BETA1, _BETA2, _EPS = 0.9, 0.999, 1e-8
_ACTIVATIONS = {nn.Tanh: jnp.tanh, nn.ReLU: jax.nn.relu}

Params = list[tuple[Any, Any]]


def ways(
    model: nn.Module, *, classifies: bool, momentum: bool, data: tuple[Tensor, Tensor]
) -> tuple[Callable[[Tensor, Tensor], Callable[[], object]], Callable[[Tensor], object]] | None:
    """Return a maker of single steps and a runner of several; None for other networks.

    Args:
        model: A ``Sequential`` of linear layers and activations, or a neural ODE of one.
        classifies: Whether the loss is cross-entropy, of classes; else it is the squared error.
        momentum: Whether the optimizer is SGD with momentum; else it is Adam.
        data: Inputs and targets of the whole data set.
    """
    field = getattr(model, "field", model)
    if not isinstance(field, nn.Sequential) or not all(
        isinstance(layer, nn.Linear | nn.Tanh | nn.ReLU) for layer in field
    ):
        return None
    activation = next(_ACTIVATIONS[type(one)] for one in field if type(one) in _ACTIVATIONS)
    params: Params = [
        (_array(layer.weight.detach()), _array(layer.bias.detach()))
        for layer in field
        if isinstance(layer, nn.Linear)
    ]

    def network(params: Params, x: Any) -> Any:
        for number, (weight, bias) in enumerate(params):
            x = x @ weight.T + bias
            if number < len(params) - 1:
                x = activation(x)
        return x

    def forward(params: Params, x: Any) -> Any:
        if field is model:
            return network(params, x)
        return _integrate(lambda y: network(params, y), x, model)

    def loss_of(params: Params, x: Any, y: Any) -> Any:
        found = forward(params, x)
        if classifies:
            return -jnp.take_along_axis(jax.nn.log_softmax(found), y[:, None], 1).mean()
        return ((found - y) ** 2).mean()

    def step(state: Any, x: Any, y: Any) -> Any:
        params, moments, number = state
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        update = _momentum if momentum else _adam
        return (*update(params, grads, moments, number + 1), number + 1), loss

    zeros = jax.tree.map(jnp.zeros_like, params)
    # Made anew for each way: a call gives up the memory of what it was given.
    x_data, y_data = (_array(one) for one in data)
    one_step = jax.jit(step, donate_argnums=0)

    @jax.jit
    def several(state: Any, indices: Any) -> Any:
        return jax.lax.scan(lambda at, row: step(at, x_data[row], y_data[row]), state, indices)

    def fresh() -> Any:
        state = (params, (zeros, zeros), jnp.zeros((), jnp.float32))
        return jax.tree.map(jnp.array, state)

    def single(x: Tensor, y: Tensor) -> Callable[[], object]:
        given = _array(x), _array(y)
        state = fresh()

        def run() -> None:
            nonlocal state
            state, loss = one_step(state, *given)
            loss.block_until_ready()

        return run

    kept = fresh()

    def run_several(indices: Tensor) -> object:
        nonlocal kept
        kept, losses = several(kept, _array(indices))
        return losses.block_until_ready()

    return single, run_several


def _array(tensor: Tensor) -> Any:
    value = tensor.numpy()
    return jnp.asarray(value.astype(np.int32) if value.dtype == np.int64 else value)


def _integrate(field: Callable[[Any], Any], y: Any, model: nn.Module) -> Any:
    """Return the state after a time of one, by the model's own method."""
    rows, weights = model.tableau
    h = 1.0 / model.num_steps
    for _ in range(model.num_steps):
        slopes: list[Any] = []
        for row in rows:
            slopes.append(field(y + h * sum((a * k for a, k in zip(row, slopes, strict=True)), 0)))
        y = y + h * sum(b * k for b, k in zip(weights, slopes, strict=True))
    return y


def _adam(params: Params, grads: Params, moments: Any, number: Any) -> Any:
    means = jax.tree.map(lambda m, g: _BETA1 * m + (1 - _BETA1) * g, moments[0], grads)
    squares = jax.tree.map(lambda v, g: _BETA2 * v + (1 - _BETA2) * g * g, moments[1], grads)
    size, root = 1e-3 / (1 - _BETA1**number), jnp.sqrt(1 - _BETA2**number)

    def moved(param: Any, mean: Any, square: Any) -> Any:
        return param - size * mean / (jnp.sqrt(square) / root + _EPS)

    return jax.tree.map(moved, params, means, squares), (means, squares)


def _momentum(params: Params, grads: Params, moments: Any, number: Any) -> Any:
    del number
    buffers = jax.tree.map(lambda m, g: 0.9 * m + g, moments[0], grads)
    params = jax.tree.map(lambda p, b: p - 0.01 * b, params, buffers)
    return params, (buffers, moments[1])
