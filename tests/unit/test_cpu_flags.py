from __future__ import annotations

from pathlib import Path

import pytest

from breakeven import processor
from breakeven.processor import cpuinfo_has_bf16, has_bf16_hardware


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("processor\t: 0\nflags\t\t: fpu sse2 avx512f avx512_bf16 amx_tile\n", True),
        ("flags\t\t: fpu amx_bf16\n", True),
        ("Features\t: fp asimd i8mm bf16\n", True),
        ("flags\t\t: fpu sse2 avx2 avx512f\n", False),
        # A name that only begins alike, and one in another line.
        ("flags\t\t: bf16x amx_bf16_old\nmodel name\t: amx_bf16\n", False),
        ("", False),
        ("\x00\ufffd no colon here", False),
    ],
)
def test_flags_of_linux(text: str, expected: bool) -> None:
    assert cpuinfo_has_bf16(text) is expected


def test_this_machine_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor.platform, "system", lambda: "Linux")
    monkeypatch.setattr(processor, "_CPUINFO", tmp_path / "cpuinfo")
    assert not has_bf16_hardware()

    (tmp_path / "cpuinfo").write_bytes(b"model name : \xff\nflags : avx512_bf16\n")
    assert has_bf16_hardware()


@pytest.mark.parametrize(("answer", "expected"), [("1", True), ("0", False), ("", False)])
def test_apple_is_asked(answer: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def sysctl(name: str) -> str:
        asked.append(name)
        return answer

    monkeypatch.setattr(processor.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(processor, "sysctl", sysctl)
    assert has_bf16_hardware() is expected
    assert asked == ["hw.optional.arm.FEAT_BF16"]
