"""Which systems there are, and what happens where one cannot be run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from breakeven.errors import BreakevenError, UsageError
from breakeven.systems import SYSTEMS, SystemEntry, find_systems, run_system
from breakeven.systems import script_path as path_of


@pytest.mark.parametrize("entry", SYSTEMS, ids=lambda entry: entry.name)
def test_an_entry_leads_to_what_runs_it_and_to_its_scripts(entry: SystemEntry) -> None:
    assert callable(entry.load())
    assert entry.title
    assert entry.published_in
    for script in entry.scripts:
        assert path_of(script).is_file()


def test_the_six_are_run_by_all() -> None:
    assert [entry.name for entry in SYSTEMS] == [
        "neural-ode", "disc-mlp", "rnn-stream", "shi2016", "device-rules", "weight-update"
    ]  # fmt: skip


def test_names_are_found_once_in_their_order() -> None:
    found = find_systems(["shi2016", "disc-mlp", "shi2016"])
    assert [entry.name for entry in found] == ["shi2016", "disc-mlp"]


def test_an_unknown_name_is_told_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="no system 'disk-mlp'") as raised:
        find_systems(["disk-mlp"])
    assert "did you mean disc-mlp?" in str(raised.value.hint)


def test_a_module_that_cannot_be_imported_is_a_reason_and_no_crash() -> None:
    entry = replace(find_systems(["disc-mlp"])[0], name="no-such-system")
    with pytest.raises(BreakevenError, match="no-such-system cannot be imported"):
        run_system(entry)


def test_an_unknown_host_is_told_before_anything_runs() -> None:
    with pytest.raises(BreakevenError, match="no-such-cpu"):
        run_system(find_systems(["disc-mlp"])[0], host="no-such-cpu")
