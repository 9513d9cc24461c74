"""The questions of the frozen runs: examples, rebuilt public reports, and scripts of the tests.

Together they cover each rule, each choice, each bound and each outcome of the search for a
crossover; `test_frozen_runs_hold_each_kind_of_answer` checks that. Prefer short steps: a frozen
run contains every operator.
"""

from __future__ import annotations

from typing import Any

from corpus_markers import CORPUS, read_script
from frozen.replay import Question

_EXAMPLES: dict[str, dict[str, Any]] = {
    "amp_unet": {"compile_mode": "default", "devices": ("A100 SXM4 40GB", "T4")},
    "disc_mlp": {"compile_mode": "reduce-overhead", "steps": 100_000},
    "fast_step_mlp": {},
    "mnist_mlp": {"devices": ("RTX 4090", "T4", "4 cores of EPYC 7763")},
    "rnn_stream": {"measured": ("T4: 340 it/s",)},
    "small_cnn": {"epochs": 3},
    "tiny_transformer": {"steps": 10_000},
    "trainer_class": {"host": "i9-10940X", "devices": ("RTX 3060 12GB", "L4")},
}

_CASES: dict[str, dict[str, Any]] = {
    "00_lenet_two_workers": {},
    "01_ram_glimpse": {},
    "03_exact_gp": {"devices": ("GTX 1080 Ti", "RTX 4090")},
    "10_collab_embedding": {},
}

_CORPUS = """
    convolution/benchmark_with_lengths convolution/bias_before_norm convolution/channels_last_amp
    convolution/fixed_shapes_no_benchmark convolution/nchw_amp_resnet
    cpu/decays_to_denormals cpu/threads_for_a_controller cpu/threads_from_the_environment
    host/cartpole_in_python
    linalg/rotations_by_svd
    loader/files_one_by_one loader/respawns_workers
    loader/workers_times_four
    logging/histograms_each_step logging/saves_and_validates_each_epoch
    loops/fused_lstm loops/neural_ode_rk4 loops/outputs_keep_graphs loops/own_rnn
    loops/triplet_per_sample
    optimizer/hand_written_sgd optimizer/word2vec_dense
    placement/head_left_behind placement/loss_on_cpu placement/never_moved
    placement/raises_on_a_gpu
    precision/double_model precision/half_issuing_fp32
    precision/odd_widths_half
    settings/anomaly_left_on settings/data_parallel_two_gpus
    size/batch_of_two size/big_batch_mlp size/tiny_dqn size/weights_too_large
    sync/confusion_matrix_numpy sync/explicit_synchronize sync/grad_norm_readout
    sync/item_every_step sync/lightning_item
    sync/masked_tokens sync/nan_guard_functional sync/numpy_in_forward
    sync/reinforce_categorical
    timing/cpu_against_cuda
    transfer/gan_noise transfer/pageable_stream
    transfer/scalars_each_step transfer/tabular_loader transfer/wide_numpy_batches
"""

# Other GPUs and hosts, on which another resource bounds the step.
_ELSEWHERE: dict[str, dict[str, Any]] = {
    "logging/histograms_each_step": {"devices": ("T4",), "host": "i9-14900K"},
    "placement/head_left_behind": {"host": "i9-14900K"},
    "transfer/pageable_stream": {"devices": ("RTX 4090",)},
}

_SCRIPTS = """
    accumulation compiles evaluates graph_step half_precision lbfgs second_device
"""

_SWEEPS: dict[str, dict[str, Any]] = {
    "width_and_batch": {
        "arguments": ("--width", "{width}", "--batch-size", "{batch}"),
        "axes": ("width=16,256,1024", "batch=16,64,256"),
        "devices": ("T4", "RTX 4090"),
    },
    "gpus": {
        "arguments": ("--width", "512", "--batch-size", "{batch}"),
        "axes": ("batch=64..16384*16", "num_devices=1,2,8"),
        "devices": ("A100 SXM4 80GB",),
    },
}


def _of_corpus(name: str) -> Question:
    """Return the question about a corpus script, by default with the GPU of its markers."""
    script = read_script(CORPUS / f"{name}.py")
    options: dict[str, Any] = {"devices": (script.device,), **_ELSEWHERE.get(name, {})}
    return Question(target=f"corpus/{name}.py", tries_cpu=script.needs_cpu_trials, **options)


QUESTIONS: dict[str, Question] = {
    **{
        f"example_{name}": Question(target=f"examples/{name}.py", **options)
        for name, options in _EXAMPLES.items()
    },
    **{
        f"case_{name}": Question(target=f"cases/{name}.py", tries_cpu=False, **options)
        for name, options in _CASES.items()
    },
    **{name.replace("/", "_"): _of_corpus(name) for name in _CORPUS.split()},
    **{
        f"script_{name}": Question(target=f"scripts/{name}.py", devices=("T4",), tries_cpu=False)
        for name in _SCRIPTS.split()
    },
    **{
        f"sweep_{name}": Question(target="scripts/sweep_knobs.py", **options)
        for name, options in _SWEEPS.items()
    },
}
