"""A step that a DataLoader limits has a finding that names it, whatever the loader is."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from breakeven.advise.diagnosis import diagnose
from breakeven.simulate import Bound
from breakeven.trace import HostWork, LoaderFacts, Location, Op, RunFacts
from factories.cases import FILE, made_up_case
from factories.steps import op

MS = 1_000_000
WHERE = Location(file=FILE, line=4)
SOURCES = st.sampled_from([
    "",
    "class Images:\n    def __getitem__(self, i):\n        return self.x[i]\n",
    "class Images:\n    def __getitem__(self, i):\n        return parse(open(self.files[i]))\n",
    "class Images:\n    def __getitem__(self, i):\n        return self.frame.iloc[i]\n",
])  # fmt: skip
TIMES = st.integers(1, 20 * MS)
SHORT = st.integers(1, 5 * MS)
OPS = st.lists(
    st.builds(lambda kernel, host: op(kernel, host_ns=host), SHORT, SHORT), min_size=1, max_size=4
)


@st.composite
def loaders(draw: st.DrawFn) -> tuple[LoaderFacts, HostWork]:
    """Draw a loader, and the work for a batch of it."""
    duration_ns, num_workers = draw(TIMES), draw(st.integers(0, 12))
    facts = LoaderFacts(
        location=WHERE,
        batch_size=draw(st.sampled_from([0, 1, 32, 1024])),
        num_samples=draw(st.sampled_from([0, 100, 10_000])),
        num_workers=num_workers,
        pin_memory=False,
        persistent_workers=draw(st.booleans()),
        num_epochs=1,
        dataset="Images",
        dataset_location=Location(file=FILE, line=1),
        data_bytes=draw(st.sampled_from([0, 1_000_000])),
        is_indexed=draw(st.booleans()),
        has_batched_fetch=draw(st.booleans()),
        fetch_ns=draw(st.sampled_from([0, duration_ns])),
        fetch_cpu_ns=draw(st.integers(0, duration_ns)),
    )
    work = HostWork(kind="data", duration_ns=duration_ns, num_workers=num_workers, location=WHERE)
    return facts, work


@given(loaders(), OPS, SOURCES, st.integers(0, 16))
def test_a_loader_that_limits_the_step_is_found(
    fed: tuple[LoaderFacts, HostWork], ops: list[Op], source: str, cores: int
) -> None:
    facts, work = fed
    run = RunFacts(num_steps=5, loaders=(facts,), num_cores=cores)
    case = made_up_case(work, *ops, facts=run, source=source)
    assume(case.prediction.bound is Bound.HOST_DATA)
    named = [one for one in diagnose(case) if 0 in one.match.events]
    assert [one for one in named if one.finding.code.startswith("LOAD")]
