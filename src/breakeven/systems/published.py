"""Figures that others published, with where; ours are set beside them and never made from them."""

from __future__ import annotations

from dataclasses import dataclass

DISC_MLP_SOURCE = 'blog post "When to use GPU for training?", 4 September 2019'
# The tenth depth of its table: from there on the laptop's GPU was faster than its CPU.
DISC_MLP_CROSSOVER_PARAMETERS = 700_000
DISC_MLP_CROSSOVER_DEPTH = 10

RNN_STREAM_SOURCE = 'question "Why GPU is much slower than cpu in google colab?"'


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSpeed:
    """Iterations per second on Google Colab, at one batch size.

    Args:
        batch_size: Streams watched at once.
        cpu_per_s: On its CPU.
        gpu_per_s: On its GPU, whose model the question does not name.
    """

    batch_size: int
    cpu_per_s: float
    gpu_per_s: float

    @property
    def ratio(self) -> float:
        """Return the GPU's speed against the CPU's."""
        return self.gpu_per_s / self.cpu_per_s


RNN_STREAM_SPEEDS = (
    StreamSpeed(batch_size=100, cpu_per_s=650.0, gpu_per_s=340.0),
    StreamSpeed(batch_size=10_000, cpu_per_s=15.0, gpu_per_s=145.0),
)

WEIGHT_UPDATE_SOURCE = "issue 88 of the machine learning framework Leaf"
WEIGHT_UPDATE_GPU = "GTX 960"
WEIGHT_UPDATE_BATCH_SIZE = 20
WEIGHT_UPDATE_MOMENTUM = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRun:
    """One training run of Leaf's MNIST example on a GTX 960.

    Args:
        place: Where the weights were updated.
        wall_s: Its wall time, in seconds.
        user_s: CPU time of the process in user mode, in seconds.
        update_fraction: Share of the CPU's time in the update's BLAS calls, where it is told.
        idle_fraction: Share of the time in which the GPU was idle, where its load is told.
    """

    place: str
    wall_s: float
    user_s: float
    update_fraction: float | None = None
    idle_fraction: float | None = None


WEIGHT_UPDATE_RUNS = (
    UpdateRun(
        place="on the host", wall_s=64.03, user_s=58.25, update_fraction=0.4, idle_fraction=0.8
    ),
    UpdateRun(place="on the device", wall_s=32.57, user_s=25.14),
)
WEIGHT_UPDATE_SPEEDUP = WEIGHT_UPDATE_RUNS[0].wall_s / WEIGHT_UPDATE_RUNS[1].wall_s
