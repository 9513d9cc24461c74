from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from breakeven.store import read_host, write_host
from factories.hosts import HOST as SPEC
from factories.hosts import calibration

HOST = calibration()
KEY = {"machine": "laptop", "python": "3.11", "torch": "2.9"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where the cache is; it does not exist yet."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(folder / name))
    return folder


def the_file(cache: Path) -> Path:
    (path,) = cache.rglob("*.json")
    return path


def test_host_is_read_back(cache: Path) -> None:
    host = replace(HOST, host=replace(SPEC, op_ns=1_234.5, backward_ns=1 / 3))
    assert read_host(KEY) is None
    write_host(KEY, host)
    assert read_host(KEY) == host
    assert [path.suffix for path in cache.rglob("*") if path.is_file()] == [".json"]


def test_order_of_the_key_does_not_matter() -> None:
    write_host(KEY, HOST)
    assert read_host(dict(reversed(KEY.items()))) == HOST


def test_other_key_is_another_host(cache: Path) -> None:
    other = {**KEY, "torch": "2.10"}
    write_host(KEY, HOST)
    assert read_host(other) is None
    write_host(other, replace(HOST, num_rounds=7))
    assert read_host(KEY) == HOST
    assert read_host(other) == replace(HOST, num_rounds=7)


def test_file_of_another_key_under_our_name_is_not_ours(cache: Path) -> None:
    write_host(KEY, HOST)
    path = the_file(cache)
    text = path.read_text()
    assert "laptop" in text
    path.write_text(text.replace("laptop", "server"))
    assert read_host(KEY) is None


def test_later_measurement_replaces_the_earlier() -> None:
    write_host(KEY, HOST)
    write_host(KEY, replace(HOST, num_rounds=7))
    assert read_host(KEY) == replace(HOST, num_rounds=7)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: b"\xff\xfe" + data,
        lambda data: b"[]",
        lambda data: data.replace(b'"op_ns":', b'"op":'),
        lambda data: data.replace(b'"op_ns":2000', b'"op_ns":"2000"'),
        lambda data: data.replace(b'"version":5', b'"version":6'),
        lambda data: data.replace(b'"version":5', b'"version":4'),
    ],
    ids=["empty", "cut off", "not text", "list", "no field", "text", "newer", "older"],
)
def test_file_that_does_not_fit_counts_as_none_and_is_replaced(damage, cache: Path) -> None:
    write_host(KEY, HOST)
    path = the_file(cache)
    data = path.read_bytes()
    assert damage(data) != data
    path.write_bytes(damage(data))
    assert read_host(KEY) is None
    write_host(KEY, HOST)
    assert read_host(KEY) == HOST


def test_cache_that_cannot_be_made_is_done_without(cache: Path) -> None:
    cache.write_text("a file stands where the folder should be")
    write_host(KEY, HOST)
    assert read_host(KEY) is None
    assert cache.read_text() == "a file stands where the folder should be"


def test_folder_where_the_file_should_be_is_done_without(cache: Path) -> None:
    write_host(KEY, HOST)
    path = the_file(cache)
    path.unlink()
    path.mkdir()
    write_host(KEY, HOST)
    assert read_host(KEY) is None
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_folder_that_is_read_only_is_done_without(cache: Path) -> None:
    folder = cache / "breakeven"
    folder.mkdir(parents=True, mode=0o500)
    write_host(KEY, HOST)
    assert read_host(KEY) is None
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("op_ns", [1e300, -1.0])
def test_times_that_no_host_takes_count_as_no_file(op_ns: float) -> None:
    write_host(KEY, replace(HOST, host=replace(SPEC, op_ns=op_ns)))
    assert read_host(KEY) is None
