"""What is not measured on this machine, since its time or memory would not do."""

from __future__ import annotations

from pathlib import Path

from breakeven.memory import physical_bytes

# Sizes whose steps are expected to take longer are not measured: the answer should come in
# seconds, and a step that long has left the region where launches decide.
LONGEST_STEP_NS = 1.0e9
# The estimate is rough, and a machine that swaps is not only slow for us.
_MEMORY_FRACTION = 0.5
# Where Linux keeps the limit of a container, of which only one version of cgroups is in use.
_CONTAINER_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def why_not_measured(
    expected_ns: float, expected_bytes: float, *, longest_step_ns: float = LONGEST_STEP_NS
) -> str | None:
    """Return why a step of that size is better not measured here; None where it may be.

    Args:
        expected_ns: How long the step is expected to take.
        expected_bytes: Memory that its process is expected to need.
        longest_step_ns: Limit of the former.
    """
    if expected_ns > longest_step_ns:
        return "a step would take too long"
    if expected_bytes > _MEMORY_FRACTION * _memory_bytes():
        return "memory is short"
    return None


def _memory_bytes() -> int:
    """Return this machine's memory, or the part of it that a container may use."""
    return min(
        [physical_bytes(), *(limit for limit in map(_limit_bytes, _CONTAINER_LIMITS) if limit)]
    )


def _limit_bytes(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # there is no such file, or it says "max"
        return None
