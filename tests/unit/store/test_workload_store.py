import pytest

from breakeven.store import TRACES
from breakeven.trace import Copy, Op, Phase, Settings, StepTrace, Sync, TensorSpec

PAIR = tuple[StepTrace, StepTrace]
KEY = {"case": "a step", "torch": "2.13.0"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda _: str(tmp_path))
    return tmp_path


def traces() -> tuple[StepTrace, StepTrace]:
    tensor = TensorSpec(shape=(2, 3), dtype="float16", device="cuda:0", storage=7)
    op = Op(
        name="aten.sum.dim_IntList",
        inputs=(tensor,),
        outputs=(),
        attributes={"dim": [0], "keepdim": True, "dtype": "torch.float32", "alpha": 0.5},
        phase=Phase.BACKWARD,
        module="Net.head",
    )
    events = (Copy(source="cpu", destination="cuda:0", num_bytes=12), op, Sync(kind="item"))
    first = StepTrace(events=events, batch_size=2, settings=Settings(autocast_dtype="float16"))
    return first, StepTrace(events=events, batch_size=3, num_parameters=5)


def test_traces_are_read_back_as_written():
    assert TRACES.read(KEY, PAIR) is None
    TRACES.write(KEY, traces())
    assert TRACES.read(KEY, PAIR) == traces()


def test_another_key_finds_nothing():
    TRACES.write(KEY, traces())
    assert TRACES.read({**KEY, "torch": "2.14.0"}, PAIR) is None


@pytest.mark.parametrize("size", [0, 1, 40, -1])
def test_a_damaged_file_counts_as_none_and_is_replaced(cache, size):
    TRACES.write(KEY, traces())
    (path,) = (cache / "traces").iterdir()
    path.write_bytes(path.read_bytes()[:size])
    assert TRACES.read(KEY, PAIR) is None
    TRACES.write(KEY, traces())
    assert TRACES.read(KEY, PAIR) == traces()


def test_a_file_of_another_key_at_this_place_counts_as_none(cache):
    TRACES.write(KEY, traces())
    TRACES.write({"case": "other"}, traces())
    one, other = sorted((cache / "traces").iterdir())
    one.write_bytes(other.read_bytes())
    found = [TRACES.read(key, PAIR) for key in (KEY, {"case": "other"})]
    assert found.count(None) == 1


def test_a_cache_that_cannot_be_written_is_no_error(cache):
    (cache / "traces").write_text("a file where the folder should be")
    TRACES.write(KEY, traces())
    assert TRACES.read(KEY, PAIR) is None
