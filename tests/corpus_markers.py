"""The scripts of ``tests/corpus``, and what their comments say of them.

Line markers stand at the end of a line, headers on lines of their own; ``tests/corpus/README.md``
says what each means.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
DEFAULT_DEVICE = "A100 SXM4 40GB"

# True or not by the machine that the step is measured on; such scripts are tried on it.
CPU_CAUSES = frozenset({"THREADS_OVER", "THREADS_SMALL", "DENORMALS"})

_SCORED = """
    LAUNCH_FLOOR LOADER_WORKERS0 ENV_BOUND SYNC_ITEM PER_SAMPLE_LOOP TIME_LOOP NOT_ON_GPU
    PART_ON_CPU LOADER_PER_ITEM ANOMALY H2D_CREATE DATA_NOT_RESIDENT SYNC_SHAPE CPU_ROUNDTRIP
    OPT_LOOP BATCH_SMALL DATAPARALLEL FP64 TIME_NO_SYNC LINALG_SMALL NO_TF32_AMP
    LOADER_RESPAWN SYNC_METRICS LOG_HEAVY SYNC_CLIP CUDNN_BENCH_VARY CUDNN_BENCH_OFF SYNC_EXPLICIT
    H2D_WIDE H2D_PAGEABLE LOADER_TOO_MANY EVAL_OFTEN SYNC_BRANCH SYNC_DIST EMBED_DENSE
    TRANSFORM_CPU IO_SLOW TIME_WARMUP CHANNELS_LAST GRAPH_RETAINED CKPT_OFTEN
    H2D_SCALAR ZERO_GRAD CONV_BIAS MISALIGNED MEMORY_FULL
"""
SCORED_CAUSES = CPU_CAUSES | frozenset(_SCORED.split()) | {"LAUNCH via SOLVER"}

# Advice that may accompany anything, and what depends on the machine alone.
_UNSCORED = """
    COMPILE_MISSING OPT_UNFUSED RECOMPUTE_FROZEN HW_ENV
"""
UNSCORED_CAUSES = frozenset(_UNSCORED.split())

# `.ci/run` explains these scripts alone, and each must be answered as its markers say. Each cause
# has one here; a few are healthy. Prefer short scripts, and those with several causes.
_SAMPLE = """
    convolution/benchmark_with_lengths convolution/bias_before_norm
    convolution/fixed_shapes_no_benchmark convolution/nchw_amp_resnet
    cpu/decays_to_denormals cpu/threads_for_a_controller cpu/threads_from_the_environment
    host/cartpole_in_python
    linalg/rotations_by_svd
    loader/files_one_by_one loader/respawns_workers loader/workers_times_four
    logging/histograms_each_step logging/saves_and_validates_each_epoch
    loops/fused_lstm loops/neural_ode_rk4 loops/outputs_keep_graphs loops/own_rnn
    loops/triplet_per_sample
    optimizer/hand_written_sgd optimizer/word2vec_dense
    placement/head_left_behind placement/never_moved
    precision/amp_for_a_tiny_net precision/double_model precision/odd_widths_half
    precision/half_issuing_fp32
    settings/anomaly_left_on settings/data_parallel_toy
    size/batch_of_two size/weights_too_large
    sync/explicit_synchronize sync/grad_norm_readout sync/item_every_step
    sync/logs_every_hundred_steps sync/masked_tokens sync/numpy_in_forward
    sync/print_loss_trainer sync/reinforce_categorical
    timing/cpu_against_cuda
    transfer/gan_noise transfer/pageable_stream transfer/pinned_stream
    transfer/scalars_each_step transfer/tabular_loader transfer/wide_numpy_batches
"""
SAMPLE = frozenset(f"{name}.py" for name in _SAMPLE.split())

_MARKER = re.compile(
    r"#\s*(finds in the step|finds|or|may find|looks like|device|healthy)(?::\s*(.*?))?\s*$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault of a script.

    Args:
        causes: Any of them names it.
        line: The line that a reviewer would point at; None for a fault of the whole step.
        other_lines: Lines that are as good.
    """

    causes: frozenset[str]
    line: int | None
    other_lines: frozenset[int] = frozenset()

    def is_found_by(self, cause: str, line: int | None) -> bool:
        """Return whether a finding of that cause at that line is this fault."""
        if cause not in self.causes:
            return False
        return self.line is None or line == self.line or line in self.other_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusScript:
    """A script with what is true of it.

    Args:
        path: Of the script.
        faults: What has to be found.
        accepted: Causes that are fair to name, anywhere in the script, and that nobody has to.
        resembles: Causes that a healthy script looks as if it had.
        device: Name of the GPU that the faults are true of.
        is_healthy: Whether it says so.
    """

    path: Path
    faults: tuple[Fault, ...]
    accepted: frozenset[str]
    resembles: frozenset[str]
    device: str
    is_healthy: bool

    @property
    def name(self) -> str:
        """Return topic and name of the file."""
        return f"{self.path.parent.name}/{self.path.name}"

    @property
    def causes(self) -> frozenset[str]:
        """Return all causes that a fault may go by."""
        return frozenset().union(*(fault.causes for fault in self.faults))

    @property
    def needs_cpu_trials(self) -> bool:
        """Return whether a marker is about the settings of the CPU."""
        return bool(CPU_CAUSES & (self.causes | self.resembles))


def read_corpus(folder: Path = CORPUS) -> tuple[CorpusScript, ...]:
    """Return all scripts, ordered by path."""
    return tuple(read_script(path) for path in sorted(folder.glob("*/*.py")))


def read_script(path: Path) -> CorpusScript:
    """Read the markers of one script.

    Raises:
        ValueError: A marker names an unknown cause, stands where it has no meaning, or there is
            neither a fault nor ``# healthy``.
    """
    return parse_script(path.read_text(encoding="utf-8"), path)


def parse_script(text: str, path: Path) -> CorpusScript:
    """Read the markers of a script's text; see `read_script`."""
    faults: list[Fault] = []
    others: list[tuple[str, int]] = []
    listed: dict[str, set[str]] = {"may find": set(), "looks like": set()}
    device, is_healthy = DEFAULT_DEVICE, False
    for kind, value, line, is_header in _markers(text):
        is_on_a_line = kind in ("finds", "or")
        if is_on_a_line == is_header:
            raise ValueError(f"{path}:{line}: # {kind} stands in the wrong place")
        if kind == "healthy":
            is_healthy = True
        elif kind == "device":
            device = value
        elif kind in listed:
            listed[kind] |= {_known(name, path, line) for name in _split(value)}
        elif kind == "or":
            others += [(_known(name, path, line), line) for name in _split(value)]
        else:
            for names in _split(value):
                causes = frozenset(_known(name, path, line) for name in names.split("/"))
                faults.append(Fault(causes=causes, line=None if is_header else line))
    if is_healthy == bool(faults):
        raise ValueError(f"{path}: either faults or # healthy, not both or neither")
    return CorpusScript(
        path=path,
        faults=_with_other_lines(faults, others, path),
        accepted=frozenset(listed["may find"]),
        resembles=frozenset(listed["looks like"]),
        device=device,
        is_healthy=is_healthy,
    )


def _markers(text: str) -> Iterable[tuple[str, str, int, bool]]:
    """Yield kind, value and line of each marker, and whether it has the line for itself."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        match = _MARKER.fullmatch(token.string) if token.type == tokenize.COMMENT else None
        if match is not None:
            is_header = not token.line[: token.start[1]].strip()
            yield match.group(1), match.group(2) or "", token.start[0], is_header


def _split(value: str) -> list[str]:
    return [name.strip() for name in value.split(",")]


def _known(name: str, path: Path, line: int) -> str:
    if name not in SCORED_CAUSES | UNSCORED_CAUSES:
        raise ValueError(f"{path}:{line}: unknown cause {name!r}")
    return name


def _with_other_lines(
    faults: list[Fault], others: list[tuple[str, int]], path: Path
) -> tuple[Fault, ...]:
    """Give each ``or`` line to the nearest fault of its cause; whole steps accept any line."""
    lines: dict[int, set[int]] = {}
    for cause, line in others:
        candidates = [i for i, fault in enumerate(faults) if cause in fault.causes]
        if not candidates:
            raise ValueError(f"{path}:{line}: # or: {cause} without a fault of that cause")
        nearest = min(candidates, key=lambda i: abs((faults[i].line or line) - line))
        lines.setdefault(nearest, set()).add(line)
    return tuple(
        Fault(causes=fault.causes, line=fault.line, other_lines=frozenset(lines.get(i, ())))
        for i, fault in enumerate(faults)
    )
