"""Random steps and costs for the tests of properties of every step."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from breakeven.simulate import CAPTURED, TYPICAL
from breakeven.simulate.program import FAST, MIXED, SLOW, WITHOUT_EACH
from breakeven.trace import Copy, GraphLaunch, HostWork, Phase, Sync
from factories.steps import MadeUpCosts, op

# Whole nanoseconds keep the arithmetic exact.
TIMES = st.integers(0, 1000)
OPS = st.builds(
    lambda kernels, host_ns, is_memory_bound, launches, phase, line: op(
        *kernels,
        host_ns=host_ns,
        is_memory_bound=is_memory_bound,
        launches=launches,
        phase=phase,
        line=line,
    ),
    st.lists(TIMES, max_size=3),
    TIMES,
    st.booleans(),
    st.integers(1, 3),
    st.sampled_from(Phase),
    st.integers(1, 5),
)
HOST_OPS = st.builds(lambda host_ns: op(host_ns=host_ns, device="cpu"), TIMES)
COPIES = st.builds(
    lambda num_bytes, is_queued: Copy(
        source="cpu",
        destination="cuda:0",
        num_bytes=num_bytes,
        is_pinned=is_queued,
        non_blocking=is_queued,
    ),
    TIMES,
    st.booleans(),
)
WORK = st.builds(
    lambda duration_ns, num_workers: HostWork(
        kind="data", duration_ns=duration_ns, num_workers=num_workers
    ),
    TIMES,
    st.integers(0, 3),
)
SYNCS = st.just(Sync(kind="item", num_bytes=4))
LAUNCHES = st.just(GraphLaunch())
REPLAYED = st.builds(
    lambda event: msgspec.structs.replace(event, is_replayed=True),
    st.one_of(OPS, COPIES.filter(lambda copy: not copy.is_blocking)),
)
EVENTS = st.lists(
    st.one_of(OPS, OPS, HOST_OPS, COPIES, WORK, SYNCS, LAUNCHES, REPLAYED), max_size=12
)
COSTS = st.builds(
    MadeUpCosts,
    launch_ns=st.integers(0, 50),
    latency_ns=st.integers(0, 50),
    gap_ns=st.integers(0, 20),
    sync_ns=st.integers(0, 50),
    copy_fixed_ns=st.integers(0, 50),
)
SCENARIOS = st.sampled_from((TYPICAL, FAST, SLOW, CAPTURED, *MIXED, *WITHOUT_EACH))
