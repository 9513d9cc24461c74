from __future__ import annotations

import msgspec
import pytest

from breakeven.trace import Event, HostWork, LoaderFacts, Location, Op, Phase, RunFacts
from factories.cases import FILE, lines, made_up_case, marked, rule_of, rules_of
from factories.steps import loader_facts, op

MS = 1_000_000
LOADER_LINE, CLASS_LINE = 20, 1


def loader(**changes: object) -> LoaderFacts:
    """Return a loader of 100 batches of 32 samples, 10 ms each, all of it computing."""
    facts = loader_facts(
        location=Location(file=FILE, line=LOADER_LINE), batch_size=32, num_samples=3200,
        dataset="Images", fetch_ns=10 * MS, fetch_cpu_ns=10 * MS,
    )  # fmt: skip
    return msgspec.structs.replace(facts, **changes)


def step(loading_ns: float, *, num_workers: int = 0, rest_ns: float = 5 * MS) -> tuple[Event, ...]:
    data = HostWork(
        kind="data",
        duration_ns=round(loading_ns),
        num_workers=num_workers,
        location=Location(file=FILE, line=30),
    )
    return (data, op(100, host_ns=rest_ns, line=31))


def codes(*events: Event, source: str = "", cores: int = 8, **changes: object) -> dict[str, list]:
    """Return the lines by code of all rules about loading."""
    facts = RunFacts(num_steps=5, loaders=(loader(**changes),), num_cores=cores)
    case = made_up_case(*events, facts=facts, source=source)
    found = {rule.code: lines(rule.detect(case)) for rule in rules_of("LOAD")}
    return {code: at for code, at in found.items() if at}


class DataSet:
    """The source of a data set, and where it is defined."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.facts = {"dataset_location": Location(file=FILE, line=CLASS_LINE)}


INDEXES = DataSet("""\
class Images(Dataset):
    def __getitem__(self, i):
        return self.x[i], self.y[i]
""")
READS = DataSet("""\
class Images(Dataset):
    def __getitem__(self, i):
        return torch.from_numpy(np.load(self.paths[i]))  # here
""")
TRANSFORMS = DataSet("""\
class Images(Dataset):
    def __getitem__(self, i):
        image = self.x[i]
        return self.shrink(image)
    def shrink(self, image):
        size = max(image.shape)
        return F.interpolate(image, size // 2)  # here
""")


def test_costly_samples_in_the_training_process() -> None:
    found = codes(*step(3 * MS), fetch_ns=3 * MS, fetch_cpu_ns=3 * MS)
    assert found == {"LOAD001": [LOADER_LINE]}


@pytest.mark.parametrize(
    "events",
    [
        step(0.4 * MS, rest_ns=0.5 * MS),  # handing it over would take as long
        step(2 * MS, rest_ns=100 * MS),  # 2 % of the step
        step(10 * MS, num_workers=4),  # workers hide it
    ],
)
def test_loading_that_is_not_in_the_way(events: tuple[Event, ...]) -> None:
    workers = next(event.num_workers for event in events if isinstance(event, HostWork))
    assert codes(*events, num_workers=workers) == {}


def test_the_gain_of_workers_leaves_the_handing_over() -> None:
    case = made_up_case(*step(10 * MS), facts=RunFacts(loaders=(loader(),), num_cores=8))
    (one,) = rule_of("LOAD001").detect(case)

    assert one.edit is not None
    shared, handed_over, *_ = one.edit.apply(case.trace).events
    assert isinstance(shared, HostWork)
    assert isinstance(handed_over, HostWork)
    # 10 ms in the time of the other 5 take two workers.
    assert (shared.num_workers, shared.duration_ns) == (2, 10 * MS)
    assert (handed_over.num_workers, handed_over.duration_ns) == (0, MS // 2)


def test_a_step_of_an_unknown_loader_is_told_at_the_line_that_fetches() -> None:
    case = made_up_case(*step(10 * MS))
    assert lines(rule_of("LOAD001").detect(case)) == [30]
    assert rule_of("LOAD002").detect(case) == ()


INDEXED = {"dataset": "TensorDataset", "is_indexed": True, "data_bytes": 10**6}


def test_tensors_in_memory_item_by_item() -> None:
    # 32 samples at 10 µs each; not LOAD001, for workers would not help.
    assert codes(*step(0.32 * MS, rest_ns=MS), **INDEXED) == {"LOAD002": [LOADER_LINE]}


def test_large_tensors_in_memory_are_no_costly_samples() -> None:
    assert codes(*step(4 * MS), **INDEXED) == {"LOAD002": [LOADER_LINE]}


@pytest.mark.parametrize(
    "changes",
    [
        {**INDEXED, "has_batched_fetch": True},  # a sampler yields whole batches
        {**INDEXED, "data_bytes": 0},  # nothing is in memory
        {"data_bytes": 10**6},  # samples are computed
    ],
)
def test_what_is_not_fetched_item_by_item(changes: dict[str, object]) -> None:
    assert "LOAD002" not in codes(*step(0.32 * MS, rest_ns=MS), **changes)


def test_one_indexing_is_not_for_workers() -> None:
    batches = {**INDEXED, "has_batched_fetch": True, "batch_size": 0}
    assert codes(*step(4 * MS), **batches) == {}


def test_the_gain_of_indexing_batches_is_all_but_one_call() -> None:
    facts = RunFacts(loaders=(loader(**INDEXED, batch_bytes=100_000),))
    case = made_up_case(*step(0.32 * MS, rest_ns=MS), facts=facts)
    (one,) = rule_of("LOAD002").detect(case)

    assert one.edit is not None
    data = one.edit.apply(case.trace).events[0]
    assert isinstance(data, HostWork)
    assert data.duration_ns == 20_000 + 20_000


def test_tensors_of_the_device_item_by_item() -> None:
    fetch = op(2, host_ns=10_000, name="aten.select.int", phase=Phase.DATA, line=30)
    events: tuple[Op, ...] = (*[fetch] * 64, op(100, host_ns=MS))
    facts = RunFacts(loaders=(loader(**INDEXED),))
    (one,) = rule_of("LOAD002").detect(made_up_case(*events, facts=facts))

    assert one.location == Location(file=FILE, line=LOADER_LINE)
    assert len(one.events) == 64
    one_indexing = made_up_case(*[fetch] * 2, op(100, host_ns=MS), facts=facts)
    assert rule_of("LOAD002").detect(one_indexing) == ()


EPOCHS = "for epoch in range(20):\n    pass\n"


def test_workers_that_are_started_in_every_short_epoch() -> None:
    facts = RunFacts(loaders=(loader(num_workers=2, num_samples=100),))
    case = made_up_case(op(100, host_ns=10 * MS), facts=facts, source=EPOCHS)
    (one,) = rule_of("LOAD003").detect(case)

    # Two workers of 20 ms for every 4 steps of 10 ms.
    assert one.gain is not None
    assert one.gain.fraction == pytest.approx(0.5)
    assert one.gain.low_fraction == pytest.approx(1 / 3)
    assert lines((one,)) == [LOADER_LINE]


@pytest.mark.parametrize(
    ("source", "changes"),
    [
        (EPOCHS, {"persistent_workers": True}),
        (EPOCHS, {"num_workers": 0}),
        (EPOCHS, {"num_samples": 32 * 1000}),  # 10 s per epoch
        (EPOCHS, {"num_samples": 0}),  # no length: an endless stream
        ("for epoch in range(1):\n    pass\n", {}),
        ("", {}),  # nothing shows a second epoch
    ],
)
def test_workers_that_are_not_started_again(source: str, changes: dict[str, object]) -> None:
    changes = {"num_workers": 2, "num_samples": 100, **changes}
    facts = RunFacts(loaders=(loader(**changes),))
    case = made_up_case(op(100, host_ns=10 * MS), facts=facts, source=source)
    assert rule_of("LOAD003").detect(case) == ()


@pytest.mark.parametrize(
    ("workers", "cores", "is_found"),
    [(64, 16, True), (17, 16, True), (16, 16, False), (4, 2, False), (8, 2, True), (8, 0, False)],
)
def test_more_workers_than_processors(workers: int, cores: int, is_found: bool) -> None:
    facts = RunFacts(loaders=(loader(num_workers=workers),), num_cores=cores)
    assert bool(rule_of("LOAD004").detect(made_up_case(op(100), facts=facts))) is is_found


def heavy(cpu_ms: float) -> dict[str, object]:
    return {"fetch_ns": round(64 * MS), "fetch_cpu_ns": round(cpu_ms * MS), **TRANSFORMS.facts}


def test_transforms_that_take_longer_than_the_step() -> None:
    # A batch takes 32 ms, a millisecond per sample, and the rest of the step 5.
    found = codes(*step(32 * MS), source=TRANSFORMS.text, data_bytes=10**6, **heavy(32))
    assert found == {"LOAD001": [LOADER_LINE], "LOAD005": marked(TRANSFORMS.text)}


def test_transforms_that_bound_the_step_in_spite_of_workers() -> None:
    events = step(64 * MS, num_workers=4)
    found = codes(*events, num_workers=4, source=TRANSFORMS.text, **heavy(64))
    assert found == {"LOAD005": marked(TRANSFORMS.text)}


def test_an_endless_stream_has_nothing_to_keep() -> None:
    events = step(64 * MS, num_workers=4)
    changes = {**heavy(64), "num_workers": 4, "num_samples": 0}
    case = made_up_case(
        *events, source=TRANSFORMS.text, facts=RunFacts(loaders=(loader(**changes),), num_cores=8)
    )
    (found,) = rule_of("LOAD005").detect(case)
    assert found.fix == (
        "transform whole batches on the GPU, or make samples cheaper or smaller, or num_workers=8"
    )


@pytest.mark.parametrize(
    ("loading_ms", "cpu_ms", "num_workers"),
    [
        (64, 64, 16),  # eight processors at most: 8 ms, and the step is bound by them
        (32, 32, 8),  # eight workers take 4 ms
        (6, 6, 0),  # 0.19 ms per sample is no transform
        (64, 4, 0),  # it waits, and computes for 4 ms only
    ],
)
def test_transforms_that_are_hidden_or_none(
    loading_ms: float, cpu_ms: float, num_workers: int
) -> None:
    events = step(loading_ms * MS, num_workers=num_workers)
    found = codes(
        *events, num_workers=num_workers, cores=16, source=TRANSFORMS.text, **heavy(cpu_ms)
    )
    assert ("LOAD005" in found) is (loading_ms == 64 and num_workers == 16)


def test_a_file_for_every_sample() -> None:
    found = codes(*step(32 * MS), cores=4, source=READS.text, **READS.facts)
    # Not a transform too: one reason is enough.
    assert found == {"LOAD001": [LOADER_LINE], "LOAD006": marked(READS.text)}


def test_workers_that_wait_for_storage() -> None:
    waiting = {"num_workers": 4, "fetch_ns": 64 * MS, "fetch_cpu_ns": 6 * MS}
    assert codes(*step(64 * MS, num_workers=4), **waiting) == {"LOAD006": [LOADER_LINE]}
    # With eight times the workers the step no longer waits.
    assert codes(*step(64 * MS, num_workers=32), cores=64, **{**waiting, "num_workers": 32}) == {}


def test_waiting_in_the_training_process_is_for_workers_to_hide() -> None:
    facts = RunFacts(loaders=(loader(fetch_cpu_ns=MS),), num_cores=8)
    case = made_up_case(*step(10 * MS), facts=facts)
    assert rule_of("LOAD006").detect(case) == ()
    assert lines(rule_of("LOAD001").detect(case)) == [LOADER_LINE]


@pytest.mark.parametrize("text", ["class Images(:", "\x00", "class Images:\n  __getitem__ = None"])
def test_sources_that_say_nothing_break_nothing(text: str) -> None:
    found = codes(*step(32 * MS), source=text, **TRANSFORMS.facts)
    assert found["LOAD001"] == [LOADER_LINE]


@pytest.mark.parametrize(
    ("workers", "cores", "more"), [(2, 8, True), (2, 2, False), (8, 8, False), (2, 0, False)]
)
def test_workers_that_limit_a_step_are_named_by_the_cost_of_a_sample(
    workers: int, cores: int, more: bool
) -> None:
    source = """\
    class Images(Dataset):
        def __getitem__(self, i):
            row = self.frame.iloc[i]  # here
            return row.values
    """
    # Light samples, but a large batch: no other rule has anything to say.
    facts = RunFacts(
        num_cores=cores,
        loaders=(
            loader(
                num_workers=workers, batch_size=200, fetch_ns=20 * MS, fetch_cpu_ns=10 * MS,
                dataset_location=Location(file=FILE, line=CLASS_LINE),
            ),
        ),
    )  # fmt: skip
    case = made_up_case(
        *step(20 * MS * workers, num_workers=workers, rest_ns=1 * MS), facts=facts, source=source
    )
    (found,) = rule_of("LOAD005").detect(case)
    assert lines((found,)) == marked(source)
    assert "takes 20 ms for the data of a step: 50 µs of a processor for each sample" in found.title
    assert ("num_workers=8" in found.fix) is more


def test_short_loading_that_limits_a_step_is_named_and_no_worker_advised() -> None:
    case = made_up_case(*step(0.4 * MS, rest_ns=0.2 * MS), facts=RunFacts(num_cores=8))
    (found,) = rule_of("LOAD005").detect(case)
    assert found.title == "the GPU waits for the loader, which takes 400 µs for the data of a step"
    assert "num_workers" not in found.fix


def test_a_loader_that_does_not_limit_the_step_is_not_named_for_light_samples() -> None:
    assert codes(*step(4 * MS, num_workers=2), fetch_cpu_ns=4 * MS, num_workers=2) == {}
