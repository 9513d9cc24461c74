"""Train some networks of `shi2016.py` with JAX on the CPU: the same sizes, the same made-up data.

The step is compiled by `jax.jit`; compiling is timed apart from the steps.

    python shi2016_jax.py --network LSTM --threads 1
"""

# JAX is optional.
# pyright: reportMissingImports=false

import argparse
import json
import os
import time

VOCABULARY = 10_000
NUM_WORDS = 32
MIN_STEPS = 3


def limit_threads(num_threads):
    """Keep this process to so many processors; XLA then makes as many threads.

    To be called before JAX is imported, which looks at its processors once.
    """
    if not hasattr(os, "sched_setaffinity"):
        raise SystemExit("--threads needs Linux: XLA on other systems takes all processors")
    processors = sorted(os.sched_getaffinity(0))
    if num_threads > len(processors):
        raise SystemExit(f"--threads {num_threads}: there are {len(processors)} processors here")
    os.sched_setaffinity(0, processors[:num_threads])


def create_networks():
    """Return each network as a function of a key to parameters, and one of a step's loss."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    def create_linear(key, num_in, num_out):
        bound = num_in**-0.5
        return jax.random.uniform(key, (num_in, num_out), minval=-bound, maxval=bound), jnp.zeros(
            num_out
        )

    def cross_entropy(logits, targets):
        log_likelihood = jax.nn.log_softmax(logits)
        return -jnp.take_along_axis(log_likelihood, targets[:, None], axis=1).mean()

    def fully_connected(*widths):
        def create(key):
            keys = jax.random.split(key, len(widths) - 1)
            return [create_linear(*layer) for layer in zip(keys, widths, widths[1:], strict=False)]

        def loss(params, inputs, targets):
            for weight, bias in params[:-1]:
                inputs = jax.nn.sigmoid(inputs @ weight + bias)
            weight, bias = params[-1]
            return cross_entropy(inputs @ weight + bias, targets)

        return create, loss

    def create_alexnet_r(key):
        keys = jax.random.split(key, 4)
        convolutions = [
            (
                jax.random.normal(keys[i], (num_out, num_in, 5, 5)) * (num_in * 25) ** -0.5,
                jnp.zeros((num_out, 1, 1)),
            )
            for i, (num_in, num_out) in enumerate([(3, 32), (32, 32), (32, 64)])
        ]
        return convolutions, create_linear(keys[3], 64 * 3 * 3, 10)

    def convolve(images, layer):
        weight, bias = layer
        return lax.conv_general_dilated(images, weight, (1, 1), "SAME") + bias

    def pool(images, start, combine):
        return lax.reduce_window(images, start, combine, (1, 1, 3, 3), (1, 1, 2, 2), "VALID")

    def alexnet_r_loss(params, images, targets):
        (first, second, third), (weight, bias) = params
        images = jax.nn.relu(pool(convolve(images, first), -jnp.inf, lax.max))
        images = pool(jax.nn.relu(convolve(images, second)), -jnp.inf, lax.max)
        images = pool(jax.nn.relu(convolve(images, third)), 0.0, lax.add) / 9
        return cross_entropy(images.reshape(len(images), -1) @ weight + bias, targets)

    def create_language_model(key):
        keys = jax.random.split(key, 4)
        layers = [create_linear(keys[i], 256 + 256, 4 * 256) for i in range(2)]
        embedding = jax.random.normal(keys[2], (VOCABULARY, 256))
        return embedding, layers, create_linear(keys[3], 256, VOCABULARY)

    def run_lstm(layer, sequence):
        weight, bias = layer
        weight_in, weight_hidden = weight[:256], weight[256:]

        def advance(state, gates_in):
            hidden, cell = state
            gates = gates_in + hidden @ weight_hidden
            update, forget, new, output = jnp.split(gates, 4, axis=-1)
            cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(update) * jnp.tanh(new)
            hidden = jax.nn.sigmoid(output) * jnp.tanh(cell)
            return (hidden, cell), hidden

        zeros = jnp.zeros((sequence.shape[1], 256))
        return lax.scan(advance, (zeros, zeros), sequence @ weight_in + bias)[1]

    def language_model_loss(params, words, targets):
        embedding, layers, (weight, bias) = params
        sequence = embedding[words]
        for layer in layers:
            sequence = run_lstm(layer, sequence)
        return cross_entropy(sequence.reshape(-1, 256) @ weight + bias, targets)

    # As in shi2016.py: loss, batch size, shape of a sample, classes, momentum.
    return {
        "FCN-S": (fully_connected(26_752, 2048, 2048, 2048, 26_752), 64, (26_752,), 26_752, 0.0),
        "FCN-R": (fully_connected(784, 2048, 4096, 1024, 10), 1024, (784,), 10, 0.9),
        "AlexNet-R": ((create_alexnet_r, alexnet_r_loss), 1024, (3, 32, 32), 10, 0.9),
        "LSTM": ((create_language_model, language_model_loss), 128, (), VOCABULARY, 0.0),
    }


def create_batch(batch_size, sample_shape, num_classes):
    """Return inputs and targets as they would come from a data set."""
    import numpy as np

    random = np.random.default_rng(0)
    if num_classes == VOCABULARY:
        words = random.integers(VOCABULARY, size=(NUM_WORDS + 1, batch_size), dtype=np.int32)
        return words[:-1], words[1:].reshape(-1)
    inputs = random.standard_normal((batch_size, *sample_shape), dtype=np.float32)
    return inputs, random.integers(num_classes, size=batch_size, dtype=np.int32)


def create_step(loss, momentum, learning_rate=0.01):
    """Return one update of SGD, compiled; parameters and velocities are overwritten."""
    import jax

    def step(params, velocities, inputs, targets):
        value, gradients = jax.value_and_grad(loss)(params, inputs, targets)
        if momentum:
            velocities = jax.tree.map(lambda v, g: momentum * v + g, velocities, gradients)
            gradients = velocities
        params = jax.tree.map(lambda p, g: p - learning_rate * g, params, gradients)
        return params, velocities, value

    return jax.jit(step, donate_argnums=(0, 1))


def train(name, batch_size, seconds):
    """Return the time of the first step, which compiles, and those of the others, in ns."""
    import jax
    import jax.numpy as jnp

    (create, loss), default_size, sample_shape, num_classes, momentum = create_networks()[name]
    batch = create_batch(batch_size or default_size, sample_shape, num_classes)
    params = create(jax.random.key(0))
    velocities = jax.tree.map(jnp.zeros_like, params) if momentum else ()
    step = create_step(loss, momentum)

    times_ns = []
    while len(times_ns) < 1 + MIN_STEPS or sum(times_ns[1:]) < seconds * 1e9:
        start_ns = time.perf_counter_ns()
        params, velocities, value = step(params, velocities, *batch)
        jax.block_until_ready((params, value))
        times_ns.append(time.perf_counter_ns() - start_ns)
        print(f"{len(times_ns):4d}  loss {float(value):7.4f}  {times_ns[-1] / 1e9:.4f} s")
    return times_ns[0], times_ns[1:]


def main():
    parser = argparse.ArgumentParser(description="Train one network of the benchmark with JAX.")
    parser.add_argument(
        "--network", choices=("FCN-S", "FCN-R", "AlexNet-R", "LSTM"), default="FCN-R"
    )
    parser.add_argument("--batch-size", type=int, help="default: that of the benchmark")
    parser.add_argument("--seconds", type=float, default=1.0, help="of steps (default: 1)")
    parser.add_argument("--threads", type=int, help="processors to use; default: all")
    parser.add_argument("--json", action="store_true", help="print the times as JSON at the end")
    arguments = parser.parse_args()

    if arguments.threads:
        limit_threads(arguments.threads)
    import jax

    jax.config.update("jax_platforms", "cpu")
    first_ns, steps_ns = train(arguments.network, arguments.batch_size, arguments.seconds)
    if arguments.json:
        times = {"version": jax.__version__, "first_ns": first_ns, "steps_ns": steps_ns}
        print(json.dumps(times))


if __name__ == "__main__":
    main()
