"""Run the scripts of the answers that README.md, the tutorial and the gallery show, and store them.

``python docs/answers.py [NAME ...]`` measures on this machine, which should be quiet, and writes
``docs/answers/NAME.json``; ``python docs/generate.py`` then makes pages and pictures of them.
Of several tunings, the one with the median speed-up is stored, and the speed-ups of all.
``--try`` stores nothing: it fails unless each answer still comes and becomes text and a page.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STORE = ROOT / "docs" / "answers"
TIME_LIMIT_S = 1_200
# Tunings differ on a busy machine. An odd number has a median among them.
NUM_TUNINGS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One command on one script of the repository.

    Args:
        name: Name of the stored file.
        title: What is trained, for the gallery; empty if the gallery omits it.
        command: Arguments of ``breakeven``.
    """

    name: str
    title: str = ""
    command: str

    @property
    def file(self) -> Path:
        """The stored answer: a document as JSON, or the messages of ``run`` as text."""
        return STORE / f"{self.name}.{'txt' if self.command.startswith('run ') else 'json'}"

    @property
    def speedups_file(self) -> Path:
        """The speed-ups that all runs of a tuning found."""
        return STORE / f"{self.name}-speedups.json"

    @property
    def script(self) -> str:
        """The script's path in the repository; empty if the command names none."""
        return next((word for word in self.command.split() if word.endswith(".py")), "")

    @property
    def is_tuning(self) -> bool:
        """Whether it is measured several times."""
        return self.command.startswith("tune ")

    @property
    def has_page(self) -> bool:
        """Whether ``report`` writes it as a page."""
        return self.command.split()[0] in ("check", "explain", "sweep", "tune")


ANSWERS = (
    Answer(
        name="tabular",
        title="a regression on a table of 32 columns",
        command="check examples/tabular_mlp.py",
    ),
    Answer(name="tune-tabular", command="tune examples/tabular_mlp.py"),
    Answer(name="run-tabular", command="run examples/tabular_mlp.py"),
    Answer(name="normal-cnn", command='normal examples/small_cnn.py --measured "T4: 45 ms"'),
    Answer(
        name="disc",
        title="points in a disc (system `disc-mlp`)",
        command="check examples/disc_mlp.py",
    ),
    Answer(
        name="disc-depth",
        title="the same, from 2 to 12 layers",
        command="sweep examples/disc_mlp.py --over depth=2,4,6,8,10,12 -- --depth={depth}",
    ),
    Answer(
        name="rnn-stream",
        title="an RNN over a stream (system `rnn-stream`)",
        command="check examples/rnn_stream.py --host colab --device T4",
    ),
    Answer(
        name="weight-update",
        title="a perceptron updated on the host (system `weight-update`)",
        command='check examples/mnist_mlp.py --device "GTX 960" --device T4 -- --update host',
    ),
    Answer(
        name="neural-ode",
        title="a neural ODE (system `neural-ode`)",
        command="check examples/published/neural_ode.py",
    ),
    Answer(
        name="shi2016",
        title="a fully connected network of 2016 (system `shi2016`)",
        command="check examples/published/shi2016.py",
    ),
    Answer(
        name="device-rules",
        title="rules of a lecture, checked (system `device-rules`)",
        command="workloads device-rules",
    ),
    Answer(
        name="small-cnn",
        title="a small convolutional network",
        command="check examples/small_cnn.py",
    ),
    Answer(
        name="transformer",
        title="a small transformer",
        command="check examples/tiny_transformer.py",
    ),
    Answer(name="unet", title="a U-Net in 16 bits", command="check examples/amp_unet.py"),
    Answer(name="lenet", title="LeNet-5", command="check examples/priced/lenet.py"),
    Answer(name="ppo", title="PPO on CartPole", command="check examples/priced/ppo.py"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the answers named, or all; return 1 if one failed."""
    parser = argparse.ArgumentParser(description="Measure the answers that the docs show.")
    parser.add_argument("names", metavar="NAME", nargs="*", help="default: all")
    parser.add_argument("--try", dest="is_trial", action="store_true", help="store nothing")
    args = parser.parse_args(argv)
    unknown = set(args.names) - {answer.name for answer in ANSWERS}
    if unknown:
        parser.error(f"no answer is called {', '.join(sorted(unknown))}")
    failed = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        # The commands write next to the scripts, and name them by their paths.
        (folder / "examples").symlink_to(ROOT / "examples")
        # A user's stored speeds and calibration must not change the answers.
        own = {f"XDG_{kind}_HOME": str(folder / kind) for kind in ("CONFIG", "CACHE")}
        for answer in ANSWERS:
            if args.names and answer.name not in args.names:
                continue
            sys.stderr.write(f"{answer.name}: breakeven {answer.command}\n")
            environment = {**os.environ, **own}
            num_runs = NUM_TUNINGS if answer.is_tuning and not args.is_trial else 1
            try:
                text, speedups = measure(answer, folder, environment, num_runs=num_runs)
                if answer.file.suffix == ".json":
                    ensure_shown(text, answer, folder)
            except subprocess.CalledProcessError as error:
                sys.stderr.write(f"{error}\n{error.stderr}")
                failed.append(answer.name)
                continue
            if not args.is_trial:
                answer.file.write_text(text, "utf-8")
                if answer.is_tuning:
                    answer.speedups_file.write_text(f"{json.dumps(speedups)}\n", "utf-8")
    if failed:
        sys.stderr.write(f"failed: {', '.join(failed)}\n")
    return bool(failed)


def measure(
    answer: Answer, folder: Path, environment: dict[str, str], *, num_runs: int
) -> tuple[str, list[float]]:
    """Run the command; return its document, or the messages of ``run``, and speed-ups of tunings.

    Of several runs, the document is that of the median speed-up.

    Raises:
        CalledProcessError: The command found no answer.
    """
    words = shlex.split(answer.command)
    if words[0] == "run":
        return _without_paths(breakeven(words, folder, environment).stderr, folder), []
    words.insert(words.index("--") if "--" in words else len(words), "--json")
    settings = folder / "breakeven.toml"
    runs = []
    for _ in range(num_runs):
        document = json.loads(_without_paths(breakeven(words, folder, environment).stdout, folder))
        found = settings.read_text("utf-8") if answer.is_tuning else ""
        runs.append((document.get("speedup", 1.0), document, found))
    runs.sort(key=lambda run: run[0])
    _, document, found = runs[num_runs // 2]
    if answer.is_tuning:
        # The next command trains under the settings that the page shows.
        settings.write_text(found, "utf-8")
    return compact(document), [speedup for speedup, *_ in runs]


def compact(document: dict[str, Any]) -> str:
    """Return a document as JSON with a line for each key."""
    pairs = (
        f"{json.dumps(key)}:{json.dumps(value, ensure_ascii=False, separators=(',', ':'))}"
        for key, value in document.items()
    )
    return "{\n" + ",\n".join(pairs) + "\n}\n"


def _without_paths(text: str, folder: Path) -> str:
    return text.replace(f"{folder}/", "").replace(f"{ROOT}/", "")


def ensure_shown(text: str, answer: Answer, folder: Path) -> None:
    """Check that an answer becomes text, and a page if its kind has one.

    Raises:
        CalledProcessError: It does not.
    """
    stored = folder / "answer.json"
    stored.write_text(text, "utf-8")
    breakeven(["report", str(stored)], folder)
    if answer.has_page:
        breakeven(["report", str(stored), "-o", "page.html", "--force"], folder)


def breakeven(
    words: Sequence[str], folder: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run one command of breakeven in ``folder``."""
    command = [sys.executable, "-m", "breakeven", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, check=True, capture_output=True, text=True,
        timeout=TIME_LIMIT_S,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
