"""What was measured of a host, beside the costs that the model takes from it."""

from __future__ import annotations

import msgspec

from breakeven.device.host import HostSpec


class HostFigure(msgspec.Struct, frozen=True, kw_only=True):
    """One time that was measured, per call.

    Args:
        code: Stable identifier: ``op``, ``view``, ``module``, ``cuda_queued``, ...
        title: What was called, for a person.
        median_ns: Median of the rounds, in nanoseconds.
        low_ns: Tenth percentile of the rounds.
        high_ns: Ninetieth percentile.
        used_for: Which costs of the host it gives; empty where it is only shown.
    """

    code: str
    title: str
    median_ns: float
    low_ns: float
    high_ns: float
    used_for: str = ""


class HostCalibration(msgspec.Struct, frozen=True, kw_only=True):
    """A measured host.

    Args:
        host: Its costs, as the model uses them.
        figures: What they were computed from, and more.
        num_rounds: Rounds, each of which measured every figure once.
        device_name: The CUDA device on which launches were measured too; empty without one.
    """

    host: HostSpec
    figures: tuple[HostFigure, ...]
    num_rounds: int
    device_name: str = ""

    def figure(self, code: str) -> HostFigure:
        """Return the figure called ``code``.

        Raises:
            KeyError: It was not measured.
        """
        for figure in self.figures:
            if figure.code == code:
                return figure
        raise KeyError(code)
