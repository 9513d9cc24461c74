"""The step of the fastest GPU as one CUDA graph: predicted, beside the step as it is."""

from __future__ import annotations

import msgspec

from breakeven.verdict.results import DeviceResult


class CapturedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that the host decides, replayed from a CUDA graph by the GPU that does it fastest.

    Args:
        result: The step, its update fused if OPT002 is found; null if no graph can replay it.
        because: Why one graph cannot replay all of it; empty if one can. If there is a result all
            the same, its model alone is compiled in mode ``reduce-overhead``.
    """

    result: DeviceResult | None = None
    because: str = ""
