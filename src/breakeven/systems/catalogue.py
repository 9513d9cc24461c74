"""Which systems there are; each is imported when it is run, so that none can break the others."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import cast

from breakeven.errors import BreakevenError, UsageError
from breakeven.systems.system import System


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemEntry:
    """A system, as it is listed.

    Args:
        name: What it is called on the command line.
        title: What it is, in a line.
        published: What was published of it, in a line.
        about_s: How long it takes to run on two cores, roughly, in seconds.
        module: Where it is, in this package.
        class_name: Its class there.
        scripts: File names of its scripts.
        requires: Modules that it needs beyond breakeven's own dependencies.
        is_extra: Not one of those that ``--all`` runs.
    """

    name: str
    title: str
    published: str
    about_s: float
    module: str
    class_name: str
    scripts: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    is_extra: bool = False

    def load(self) -> System:
        """Return the system itself.

        Raises:
            BreakevenError: What it needs is not installed.
        """
        missing = [name for name in self.requires if importlib.util.find_spec(name) is None]
        if missing:
            raise BreakevenError(
                f"{self.name} needs {' and '.join(missing)}, which is not installed",
                hint=f"python -m pip install {' '.join(missing)}",
            )
        module = importlib.import_module(f"breakeven.systems.{self.module}")
        return cast(System, getattr(module, self.class_name)())


SYSTEMS = (
    SystemEntry(
        name="neural-ode",
        title="a neural ODE of 3-100-3 learns the Lorenz system",
        published="the CPU is orders of magnitude faster than a K40c",
        about_s=120,
        module="neural_ode",
        class_name="NeuralOde",
        scripts=("neural_ode.py", "neural_ode_solver.py"),
        requires=("torchdiffeq",),
    ),
    SystemEntry(
        name="disc-mlp",
        title="points in a disc, classified by 2 to 12 layers that double in width",
        published="a laptop's GPU is faster from about 700,000 parameters on",
        about_s=120,
        module="disc_mlp",
        class_name="DiscMlp",
        scripts=("disc_mlp.py",),
    ),
    SystemEntry(
        name="rnn-stream",
        title="an RNN of 256 units over a stream of frames, batch 100 against 10,000",
        published="Colab's GPU at 0.52 times the CPU's speed, and at 9.7 times",
        about_s=60,
        module="rnn_stream",
        class_name="RnnStream",
        scripts=("rnn_stream.py",),
    ),
    SystemEntry(
        name="shi2016",
        title="seven networks of a benchmark of 2016, by threads and GPUs",
        published="seconds per mini-batch of five frameworks on CPUs and three GPUs",
        about_s=360,
        module="shi2016",
        class_name="Shi2016",
        scripts=("shi2016.py", "shi2016_jax.py"),
    ),
    SystemEntry(
        name="device-rules",
        title="what a lecture teaches about devices, checked without a GPU",
        published="rules about where tensors live, and that copies to a GPU are slow",
        about_s=30,
        module="device_rules",
        class_name="DeviceRules",
        scripts=("device_rules.py",),
    ),
    SystemEntry(
        name="weight-update",
        title="the weights of an MNIST perceptron, updated on the host or on the device",
        published="64.03 s with the update on the host, 32.57 s on a GTX 960",
        about_s=60,
        module="weight_update",
        class_name="WeightUpdate",
        scripts=("mnist_mlp.py",),
    ),
    SystemEntry(
        name="matvec",
        title="matrix times vector, as small as launches are long",
        published="100×100: CPU 56 µs, GPU 12.5 µs; 100×3: CPU 0.25 µs, GPU 12.2 µs",
        about_s=30,
        module="matvec",
        class_name="Matvec",
        scripts=("matvec.py",),
        is_extra=True,
    ),
)


def main_systems() -> tuple[SystemEntry, ...]:
    """Return the six systems that were asked about."""
    return tuple(entry for entry in SYSTEMS if not entry.is_extra)


def find_systems(names: Sequence[str]) -> tuple[SystemEntry, ...]:
    """Return the systems of these names, each once, in the order given.

    Raises:
        UsageError: There is no such system.
    """
    by_name = {entry.name: entry for entry in SYSTEMS}
    for name in names:
        if name not in by_name:
            near = get_close_matches(name, by_name, n=1)
            meant = f"did you mean {near[0]}? " if near else ""
            raise UsageError(
                f"there is no system {name!r}", hint=f"{meant}there are: {', '.join(by_name)}"
            )
    return tuple(by_name[name] for name in dict.fromkeys(names))
