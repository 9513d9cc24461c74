"""``breakeven.toml``: what is written is read back, and what was damaged is refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict

from breakeven.errors import BreakevenError, Caveat, StoredDataError, UsageError
from breakeven.processor import cpu_name, num_cores
from breakeven.store import read_tuned, this_machine, tuned_of, write_tuned
from breakeven.trace import Configuration
from breakeven.verdict import Machine, Numerics, Outcome, Trial
from factories.tuned import report


@pytest.fixture
def tuned_file(tmp_path: Path) -> Path:
    path = tmp_path / "breakeven.toml"
    write_tuned(path, report(), force=False)
    return path


texts = st.text(st.characters(), max_size=40)  # with surrogates and control characters
numbers = st.floats(allow_nan=False)
configurations = st.builds(
    Configuration,
    num_threads=st.integers(0, 512),
    loader_batch_size=st.integers(0, 64),
    gathers_batches=st.booleans(),
    optimizer=st.sampled_from(["", "fused"]),
    autocast=st.sampled_from(["", "bfloat16", "float16"]),
)
machines = st.builds(
    Machine,
    processor=st.text(max_size=40),
    num_cores=st.integers(1, 512),
    gpu=st.text(max_size=40),
    torch_version=st.text(max_size=10),
    python_version=st.text(max_size=10),
    breakeven_version=st.text(max_size=10),
)
trials = st.builds(
    Trial,
    candidate=texts,
    title=texts,
    numerics=st.sampled_from(Numerics),
    outcome=st.sampled_from(Outcome),
    reason=texts,
    speedup=st.none() | numbers,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    target=texts,
    arguments=st.lists(texts, max_size=3),
    device=st.sampled_from(["cpu", "gpu"]),
    machine=machines,
    configuration=configurations,
    figures=st.tuples(numbers, numbers, numbers, numbers, numbers),
    found=st.lists(trials, max_size=4),
    caveats=st.lists(st.builds(Caveat, code=st.text(), message=texts), max_size=2),
    pays_off=st.none() | st.integers(0, 10**9),
)
def test_reads_what_it_wrote(
    tmp_path: Path,
    target: str,
    arguments: list[str],
    device: str,
    machine: Machine,
    configuration: Configuration,
    figures: tuple[float, ...],
    found: list[Trial],
    caveats: list[Caveat],
    pays_off: int | None,
) -> None:
    names = ("baseline_step_ns", "tuned_step_ns", "speedup", "low", "high")
    written = report(
        target=target,
        arguments=tuple(arguments),
        device=device,
        machine=machine,
        configuration=configuration,
        trials=tuple(found),
        caveats=tuple(caveats),
        pays_off_after_steps=pays_off,
        **dict(zip(names, figures, strict=True)),
    )
    path = tmp_path / "breakeven.toml"
    write_tuned(path, written, force=True)
    tuned = read_tuned(path)
    assert tuned == tuned_of(written)
    assert tuned.configuration == configuration
    assert asdict(tuned.machine) == asdict(machine)
    assert len(tuned.arguments) == len(arguments)
    applied = [one for one in found if one.outcome is not Outcome.NOT_APPLICABLE]
    assert [trial.speedup for trial in tuned.evidence.trials] == [one.speedup for one in applied]


def test_a_person_can_read_it(tuned_file: Path) -> None:
    text = tuned_file.read_text()
    head = text[: text.index("schema_version")]
    for word in ("breakeven run TARGET", "Undone by", "breakeven tune TARGET"):
        assert word in head
    assert 'optimizer = "fused" # which of torch\'s implementations' in text
    assert "gathers_batches = true # " in text
    # Of the settings only what differs.
    assert "autocast" not in text


def test_nothing_found_is_said(tmp_path: Path) -> None:
    path = tmp_path / "breakeven.toml"
    write_tuned(path, report(configuration=Configuration()), force=False)
    assert "[configuration] # nothing was shown to be faster" in path.read_text()
    assert read_tuned(path).configuration == Configuration()


def test_is_not_overwritten_without_force(tuned_file: Path) -> None:
    before = tuned_file.read_bytes()
    with pytest.raises(BreakevenError, match="exists and is not overwritten"):
        write_tuned(tuned_file, report(target="other.py"), force=False)
    assert tuned_file.read_bytes() == before
    write_tuned(tuned_file, report(target="other.py"), force=True)
    assert read_tuned(tuned_file).target == "other.py"
    assert list(tuned_file.parent.iterdir()) == [tuned_file]


def replaced(old: str, new: str) -> Callable[[str], str]:
    def edit(text: str) -> str:
        assert text.count(old) >= 1
        return text.replace(old, new, 1)

    return edit


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (replaced("num_threads = 1", "num_threads = 'one'"), "configuration.num_threads"),
        (replaced("num_threads = 1", "num_threads = true"), "configuration.num_threads"),
        (replaced("num_threads = 1", "num_threads = -1"), "configuration.num_threads"),
        (
            replaced("num_threads = 1", "num_threads = 99999"),
            "`int` <= 1024 - at `configuration.num_threads`",
        ),
        (replaced("num_threads = 1", "threads = 1"), "`threads` - at `configuration`"),
        (replaced('"fused"', '"fastest"'), "'fastest' - at `configuration.optimizer`"),
        (replaced("num_cores = 2", "num_cores = 2.5"), "machine.num_cores"),
        (replaced("num_cores = 2", "cores = 2"), "`cores` - at `machine`"),
        (replaced("[machine]", "[machine]\nhost = 'x'"), "`host` - at `machine`"),
        (replaced("code = ", "why = 'x'\ncode = "), "`why` - at `evidence.caveats[0]`"),
        (replaced('device = "cpu"', 'device = "tpu"'), "'tpu' - at `device`"),
        (replaced('device = "cpu"', 'devices = "cpu"'), "device"),
        (replaced("schema_version = 1", "schema_version = 2"), "schema_version 2"),
        (replaced("schema_version = 1", ""), "schema_version"),
        (replaced("num_cores = 2", "num_cores = "), "line 16"),
        (replaced('outcome = "kept"', 'outcome = "won"'), "evidence.trials[0].outcome"),
        (lambda _: "", "schema_version"),
        (lambda _: "[project]\nname = 'x'", "schema_version"),
    ],
)
def test_refuses_what_was_edited(edit: Callable[[str], str], said: str, tuned_file: Path) -> None:
    tuned_file.write_text(edit(tuned_file.read_text()))
    with pytest.raises(StoredDataError) as error:
        read_tuned(tuned_file)
    assert str(tuned_file) in error.value.message
    assert said in error.value.message
    assert error.value.hint is not None
    assert "breakeven tune" in error.value.hint


def test_refuses_every_beginning_of_a_file(tuned_file: Path) -> None:
    whole = tuned_file.read_bytes().rstrip()
    # At a line's end too, where what is left is TOML.
    ends = {length for length, byte in enumerate(whole) if byte == ord("\n")}
    for length in sorted({*range(0, len(whole), 17), *ends, len(whole) - 1}):
        tuned_file.write_bytes(whole[:length])
        with pytest.raises(StoredDataError):
            read_tuned(tuned_file)


def test_refuses_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(StoredDataError, match="No such file"):
        read_tuned(tmp_path / "none.toml")
    with pytest.raises(StoredDataError, match="Is a directory"):
        read_tuned(tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(StoredDataError, match=r"binary\.toml"):
        read_tuned(tmp_path / "binary.toml")


def test_this_machine_agrees_with_what_measures() -> None:
    import torch

    here = this_machine(gpu="H200")
    assert here.processor == cpu_name()
    assert here.torch_version == str(torch.__version__)
    assert here.gpu == "H200"
    assert here.num_cores == num_cores() >= 1


@pytest.mark.parametrize(
    "line", ["num_interop_threads = 1", 'optimizer = "foreach"', "prefetch_factor = 4"]
)
def test_a_setting_that_is_gone_is_named_with_what_to_do(line: str, tuned_file: Path) -> None:
    text = re.sub(r"(?m)^optimizer = .*\n", "", tuned_file.read_text())
    tuned_file.write_text(text.replace("[configuration]\n", f"[configuration]\n{line}\n"))
    with pytest.raises(UsageError) as caught:
        read_tuned(tuned_file)
    assert str(tuned_file) in caught.value.message
    assert line.partition(" ")[0] in caught.value.message
    assert "breakeven tune train.py --force" in str(caught.value.hint)
