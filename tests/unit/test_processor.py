"""The processor's name."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from breakeven import processor
from breakeven.processor import cpu_name


def read_cpuinfo(monkeypatch: pytest.MonkeyPatch, path: Path) -> str:
    monkeypatch.setattr(processor, "Path", lambda _: path)
    return cpu_name()


def test_processor_is_called_what_the_system_calls_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(
        "processor\t: 0\nmodel\t\t: 49\nmodel name\t: AMD EPYC: 7B12\nmodel name\t: other\n"
    )
    assert read_cpuinfo(monkeypatch, path) == "AMD EPYC: 7B12"


@pytest.mark.parametrize("text", ["processor\t: 0\nBogoMIPS\t: 50.00\n", None])
def test_processor_without_a_model_name_is_called_by_its_kind(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cpuinfo"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert read_cpuinfo(monkeypatch, path) == "aarch64"
