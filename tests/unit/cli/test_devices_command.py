"""``breakeven devices``: the filters of the list."""

from __future__ import annotations

import json

import pytest

from breakeven.cli import main
from breakeven.units import BYTES_PER_GIB


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, object]]:
    assert main(["devices", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["devices"]


def test_filters_narrow_the_list_together(capsys: pytest.CaptureFixture[str]) -> None:
    every = listed(capsys)
    ada = listed(capsys, "--vendor", "NVIDIA", "--generation", "Ada", "--memory", ">= 24 GB")
    assert 0 < len(ada) < len(every)
    assert {one["vendor"] for one in ada} == {"nvidia"}
    assert {one["architecture"] for one in ada} == {"Ada"}
    assert ada == [
        one
        for one in every
        if one["architecture"] == "Ada" and one["memory_bytes"] >= 24 * BYTES_PER_GIB  # type: ignore[operator]
    ]


@pytest.mark.parametrize(
    ("size", "smallest", "largest"),
    [("24GB", 24, 512), (">24", 32, 512), ("= 24GiB", 24, 24), ("< 4g", 2, 2), ("<=4", 2, 4)],
)
def test_memory_is_compared_in_gib(
    size: str, smallest: float, largest: float, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = [one["memory_bytes"] for one in listed(capsys, "--memory", size)]
    assert (min(sizes), max(sizes)) == (smallest * BYTES_PER_GIB, largest * BYTES_PER_GIB)  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--vendor", "nvida"], 2, "--vendor takes amd, apple, intel, nvidia"),
        (["--generation", "adda"], 2, "has the generation 'adda'"),
        (["--memory", "lots"], 2, "--memory takes a size in GB, not 'lots'"),
        (["a100", "--vendor", "amd"], 2, "leave out NAME and --hosts"),
        (["--hosts", "--memory", "8GB"], 2, "leave out NAME and --hosts"),
        (["--vendor", "apple", "--generation", "ada"], 3, "no GPU of the catalogue passes"),
    ],
)
def test_what_cannot_be_filtered_is_refused(
    arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["devices", *arguments]) == code
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""
