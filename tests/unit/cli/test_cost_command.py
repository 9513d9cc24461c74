"""`breakeven cost`: options, limits, exit codes."""

from __future__ import annotations

import argparse
import datetime
import json
from pathlib import Path

import pytest

from breakeven.cli import main
from breakeven.cli.cost import _until_s
from breakeven.cli.options import duration_s, whole_number
from unit.studies.test_cost import stored


def test_a_stored_run_is_priced_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["cost", str(stored(tmp_path)), "--steps", "1000", "--clouds", "hf", "--json"])

    document = json.loads(capsys.readouterr().out)
    assert code == 0
    assert document["num_steps"] == 1000
    assert {row["provider"] for row in document["rows"]} == {"", "hf"}
    assert [source["id"] for source in document["prices"]] == ["hf"]


def test_the_file_is_read_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cost.json"
    run = str(stored(tmp_path))
    assert main(["cost", run, "--steps", "9", "--machines", "T4", "-o", str(file)]) == 0
    shown = capsys.readouterr().out
    assert main(["report", str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == shown.splitlines()[0]


def test_an_own_price_replaces_the_listed_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(stored(tmp_path))
    named = ["--steps", "9", "--machines", "g5.xlarge", "--price", "g5.xlarge=0.25", "--json"]
    assert main(["cost", run, *named]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["usd_per_hour"] for row in rows if row["machine"] == "g5.xlarge"] == [0.25]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "length of the training is unknown"),
        (["--steps", "-5"], "is not a whole number above 0"),
        (["--steps", "5", "--machines", "gpu9000"], "gpu9000"),
        (["--steps", "5", "--clouds", "ibm"], "ibm"),
        (["--steps", "5", "--price", "g5.xlarge=0"], "is not a number above 0"),
        (["--steps", "5", "--price", "g5.xlarge"], "is not NAME=USD"),
        (["--steps", "5", "--price", "g9.xlarge=1"], "g9.xlarge"),
        (["--steps", "5", "--budget", "nan"], "is not a number above 0"),
        (["--steps", "5", "--deadline", "0h"], "is not a time above 0"),
        (["--steps", "5", "--setup", "-1"], "is not a time of at least 0"),
        (["--steps", "5", "--power-price", "-1"], "is not a number of at least 0"),
        (["--steps", "5", "--until", "2020-01-01T00:00"], "is in the past"),
        (["--steps", "5", "--until", "later"], "is not a time, such as 07:30"),
        (["--steps", "5", "--deadline", "8h", "--until", "07:00"], "not allowed with"),
        (["--steps", "5", "--", "--lr", "1"], "nothing after -- can reach its script"),
        (["--steps", "5", "--format", "hf", "--json"], "--format and --json both print"),
        (["--steps", "5", "--format", "k8s"], "invalid choice: 'k8s'"),
    ],
)
def test_wrong_options_are_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    file = tmp_path / "cost.json"
    run = str(stored(tmp_path))
    first, dashes, last = [*options], [], []
    if "--" in options:
        split = options.index("--")
        first, dashes, last = options[:split], ["--"], options[split + 1 :]
    assert main(["cost", run, *first, "-o", str(file), *dashes, *last]) == 2
    assert message in capsys.readouterr().err
    assert not file.exists()


def test_a_job_is_one_command_with_the_arguments_of_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, file = str(stored(tmp_path)), tmp_path / "cost.json"
    options = ["--steps", "100000", "--format", "hf", "-o", str(file)]
    assert main(["cost", run, *options, "--", "--lr", "0.1"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("hf jobs run --flavor ")
    assert shown.out.endswith(" --lr 0.1\n")
    assert shown.out.count("\n") == 1
    assert "IMAGE: a Docker image" in shown.err
    providers = {row["provider"] for row in json.loads(file.read_text())["rows"]}
    assert providers == {"", "hf"}


def test_a_job_that_no_machine_can_do_ends_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--steps", "100", "--format", "hf", "--deadline", "1s"]
    assert main(["cost", str(stored(tmp_path)), *options]) == 3
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "no chosen machine of hf surely fits step and limits" in shown.err


def test_a_script_needs_a_length_before_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "missing_script.py"]) == 2
    assert "pass --steps N or --epochs N" in capsys.readouterr().err


def test_a_time_of_day_is_the_next_one() -> None:
    now = datetime.datetime.now()
    past, soon = (now + datetime.timedelta(minutes=m) for m in (-5, 5))
    assert 23 * 3600 < _until_s(past.strftime("%H:%M")) <= 24 * 3600
    assert _until_s(soon.strftime("%H:%M")) < 3600


@pytest.mark.parametrize(
    ("limit", "options", "code"),
    [("1e6", [], 0), ("1e-6", [], 1), ("1e6", ["--strict"], 0), ("1e-6", ["--strict"], 1)],
)
def test_a_limit_of_money_sets_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], limit: str, options: list[str], code: int
) -> None:
    run = ["cost", str(stored(tmp_path)), "--steps", "9", "--machines", "T4"]
    assert main([*run, "--max-usd", limit, *options]) == code
    assert ("--max-usd 1e-06" in capsys.readouterr().err) == bool(code)


def test_a_part_of_the_interval_suffices_when_strict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["cost", str(stored(tmp_path)), "--steps", "100000", "--machines", "T4"]
    assert main([*run, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    usd = min(row["usd"]["value"] for row in rows if row["provider"])
    assert main([*run, "--max-usd", str(usd)]) == 0
    assert main([*run, "--max-usd", str(usd), "--strict"]) == 1


def test_a_job_beyond_the_limit_fails_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["cost", str(stored(tmp_path)), "--steps", "100000", "--format", "sky"]
    assert main([*run, "--max-usd", "1e-6"]) == 1
    assert "instance_type" in capsys.readouterr().out


def test_a_limit_of_money_needs_a_machine_within_the_deadline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["cost", str(stored(tmp_path)), "--steps", "100000", "--deadline", "1s"]
    assert main([*run, "--max-usd", "5"]) == 3
    assert "--max-usd cannot be judged" in capsys.readouterr().err


def test_a_time_with_a_zone_is_converted() -> None:
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=3)
    assert _until_s(soon.isoformat()) == pytest.approx(3 * 3600, abs=60)


def test_a_job_for_another_provider_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["cost", str(stored(tmp_path)), "--steps", "9", "--clouds", "AWS", "--format", "hf"]
    assert main(run) == 2
    assert "--format hf is for hf alone" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1h30m", 5400.0), ("1h 30min", 5400.0), ("2d", 172_800.0), ("1d 2h 3m 4.5s", 93_784.5),
        ("30m1h", 5400.0), ("90", 90.0),
    ],
)  # fmt: skip
def test_a_time_has_one_part_or_several(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "1h30", "h", "1x", "1h-30m", "1,5h", "s", "1e3s", "9" * 400])
def test_other_times_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a time above 0, such as 30s or"):
        duration_s(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [("1e6", 10**6), ("1.5E3", 1500), ("10_000", 10_000), ("1,000", 1000), ("7", 7)],
)
def test_whole_numbers_may_have_an_exponent(text: str, number: int) -> None:
    found = whole_number(text)
    assert (found, type(found)) == (number, int)


@pytest.mark.parametrize("text", ["1.5", "1.5e0", "1e18", "1e99", "1e-3", "0e3", "e6", "1e", "nan"])
def test_other_numbers_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a whole number above 0"):
        whole_number(text)


def test_power_may_be_free_and_setup_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["cost", str(stored(tmp_path)), "--steps", "1e3", "--machines", "T4", "--json"]
    assert main([*run, "--power-price", "0", "--setup", "0", "--grid", "0"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["num_steps"] == 1000
    assert report["setup_s"] == {"value": 0, "low": 0, "high": 0}
    assert {row["co2_kg"]["value"] for row in report["rows"]} == {0}
    assert [row["usd"]["value"] for row in report["rows"] if not row["provider"]] == [0]
