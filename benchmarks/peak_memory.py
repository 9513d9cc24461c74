"""Compare the predicted peak memory of training steps with the CPU allocator's.

    python benchmarks/peak_memory.py [--only NAME]

Each step runs on this CPU under torch's profiler, whose record of all allocations gives the peak
of a step in steady state. The prediction is without the CUDA context: once for a step that was
recorded at this batch size, once for one that was recorded with two and three samples. Recurrent
layers are not comparable: the CPU keeps the gates of every time step, a GPU cuDNN's reserve.
"""

from __future__ import annotations

import argparse
import gc
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from breakeven.trace import StepCase, TimedPhase
from breakeven.workloads import case_traces, step_on_device, trace_case

# By workload: optimizer, and a batch at which activations count.
STEPS = {
    "breakeven:mlp": ("adam", 1024),
    "breakeven:disc-mlp?depth=10": ("sgd", 4096),
    "breakeven:lstm?seq=50": ("adam", 64),
    "breakeven:rnn-stream": ("sgd-plain", 512),
    "breakeven:resnet?depth=18&image=64": ("sgd", 32),
    "breakeven:resnet?depth=50&image=64": ("adamw", 16),
    "torchvision:mobilenet_v2?image=64": ("adam", 32),
    "torchvision:shufflenet_v2_x1_0?image=64": ("adadelta", 64),
    "torchvision:densenet121?image=64": ("sgd", 16),
    "torchvision:vgg11?image=64": ("sgd-plain", 8),
    "torchvision:vit_b_16?image=64&image_size=64": ("adamw", 16),
    "transformers:BertForSequenceClassification?seq=64&num_hidden_layers=2": ("adamw", 32),
    "llm:gpt2?d_model=128&n_heads=4&n_layers=2&vocab=2000&seq=64": ("adamw", 32),
}
_STEP = "measured step"


def measured_bytes(case: StepCase, batch_size: int) -> int:
    """Return the peak of live bytes within the third step."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step = step_on_device(case, batch_size, torch.device("cpu"))
        for number in range(3):
            gc.collect()
            with record_function(f"{_STEP} {number}"):
                step()
    recorded: Any = profiler.profiler
    events = recorded.kineto_results.events()
    last = next(event for event in events if event.name() == f"{_STEP} 2")
    live_bytes = peak_bytes = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            live_bytes += event.nbytes()
            if last.start_ns() <= event.start_ns() <= last.end_ns():
                peak_bytes = max(peak_bytes, live_bytes)
    return peak_bytes


def recorded_bytes(case: StepCase, batch_size: int) -> int:
    """Return the predicted peak of a step that was recorded at its own batch size."""
    with patch.object(case_traces, "_BATCH_SIZES", (batch_size, batch_size + 1)):
        return trace_case(case).first.peak_memory_bytes


def main() -> None:
    """Print the peaks and the errors."""
    parser = argparse.ArgumentParser(description="Compare peaks with the CPU allocator's.")
    parser.add_argument("--only", default="", help="workloads whose name contains this")
    only = parser.parse_args().only
    errors: list[tuple[float, float]] = []
    for workload, (optimizer, batch_size) in STEPS.items():
        if only not in workload:
            continue
        case = StepCase(workload=workload, phase=TimedPhase.TRAIN, optimizer=optimizer)
        measured = measured_bytes(case, batch_size)
        recorded = recorded_bytes(case, batch_size)
        scaled = trace_case(case).at(batch_size).peak_memory_bytes
        errors.append((abs(recorded / measured - 1), abs(scaled / measured - 1)))
        print(
            f"{workload}, {optimizer}, batch {batch_size}: {measured / 1e6:.1f} MB measured; "
            f"recorded there {recorded / measured - 1:+.1%}, scaled {scaled / measured - 1:+.1%}"
        )
    recorded_errors, scaled_errors = zip(*errors, strict=True)
    print(
        f"{len(errors)} steps: median error {median(recorded_errors):.1%} recorded at the batch "
        f"size, {median(scaled_errors):.1%} scaled"
    )


if __name__ == "__main__":
    main()
