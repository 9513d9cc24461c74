"""Unit conversions, the only place that scales a number, and quantities as text for people."""

from __future__ import annotations

import re

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
BYTES_PER_GIB = 2**30
BYTES_PER_MIB = 2**20

_DURATIONS = ((NS_PER_S, "s"), (NS_PER_MS, "ms"), (NS_PER_US, "µs"), (1, "ns"))
_S_PER_MIN, _S_PER_H, _S_PER_DAY = 60, 3_600, 86_400
_LONG_TIMES = (
    (_S_PER_DAY, "d", _S_PER_H, "h"),
    (_S_PER_H, "h", _S_PER_MIN, "min"),
    (_S_PER_MIN, "min", 1, "s"),
)
_TIMES_NS = {"us": NS_PER_US, "ms": NS_PER_MS, "s": NS_PER_S, "min": _S_PER_MIN * NS_PER_S}
# A comma is one of thousands: "12,5" may mean a tenth of 125.
_NUMBER = r"(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d*\.?\d+)"
_COUNTED = {"it": "step", "step": "step", "sample": "sample", "epoch": "epoch"}
# From this count on, the smaller unit adds no information.
_FEW = 10
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))
_COUNTS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
# Scale and quantity of a unit.
_AMOUNTS = {
    **{unit: (scale, "ns") for unit, scale in _TIMES_NS.items()},
    **{unit.lower(): (scale, "bytes") for scale, unit in _SIZES},
    "h": (_S_PER_H * NS_PER_S, "ns"),
    "%": (0.01, "fraction"),
    "": (1, "count"),
}


def format_digits(value: float, digits: int = 3, *, keeps_zeros: bool = False) -> str:
    """Return ``value`` with ``digits`` significant digits and no exponent.

    Args:
        value: Any figure.
        digits: Significant digits, at least 1.
        keeps_zeros: Show ``3.0`` as such, if the digit after the point is known to be zero.
    """
    if value == 0:
        return "0"
    text = f"{value:#.{digits}g}".removesuffix(".") if keeps_zeros else f"{value:.{digits}g}"
    return f"{float(text):,.0f}" if "e" in text else text


def format_duration(duration_ns: float, digits: int = 3, *, keeps_zeros: bool = False) -> str:
    """Return a duration in the unit that a person would choose: ``1.24 ms``."""
    for scale, unit in _DURATIONS:
        # Rounding first keeps 999.9 µs from being shown as "1e+03 µs".
        if float(f"{abs(duration_ns) / scale:.{digits}g}") >= 1:
            return f"{format_digits(duration_ns / scale, digits, keeps_zeros=keeps_zeros)} {unit}"
    return f"{format_digits(duration_ns, digits, keeps_zeros=keeps_zeros)} ns"


def format_time(duration_ns: float) -> str:
    """Return a time of any length as people say it: ``42 min``, ``3 h 10 min``, ``2 d 4 h``."""
    seconds = duration_ns / NS_PER_S
    if round(seconds) < _S_PER_MIN:
        return format_duration(duration_ns, 2)
    scale_s, unit, part_s, part = next(
        each for each in _LONG_TIMES if round(seconds / each[2]) * each[2] >= each[0]
    )
    whole, rest = divmod(round(seconds / part_s), scale_s // part_s)
    return f"{whole:,} {unit}" + (f" {rest} {part}" if rest and whole < _FEW else "")


def format_bytes(num_bytes: float, digits: int = 3) -> str:
    """Return a data size in decimal units: ``16 GB`` is 16 × 10⁹ bytes."""
    for scale, unit in _SIZES:
        if float(f"{abs(num_bytes) / scale:.{digits}g}") >= 1:
            return f"{format_digits(num_bytes / scale, digits)} {unit}"
    return "0 B"


def format_count(count: float, digits: int = 3) -> str:
    """Return a count or rate with an SI prefix: ``12.3k``."""
    for scale, prefix in _COUNTS:
        if float(f"{abs(count) / scale:.{digits}g}") >= 1:
            return f"{format_digits(count / scale, digits)}{prefix}"
    return format_digits(count, digits)


def format_ratio(ratio: float) -> str:
    """Return a ratio as people say it: ``3.2×``, ``0.41×``, ``120×``."""
    return f"{format_digits(ratio, 2 if ratio < 100 else 3)}×"


def format_percent(fraction: float) -> str:
    """Return a share (0-1) as a percentage: ``12 %``."""
    return f"{format_digits(100 * fraction, 2)} %"


def parse_speed(text: str) -> tuple[float, str] | None:
    """Parse a speed such as ``340 it/s``, ``12 ms`` or ``45 s/epoch``.

    Returns:
        Nanoseconds per ``step``, ``sample`` or ``epoch``, and that unit; None if not a speed > 0.
    """
    found = re.fullmatch(_NUMBER + r" *([a-zµμ]+)(?:/([a-z]+))?", text.lower())
    value = float(found[1].replace(",", "")) if found else 0.0
    if not found or not 0 < value < float("inf"):
        return None
    over, under = re.sub("[µμ]", "u", found[2]), found[3] or "it"
    for time, counted, power in ((over, under, 1), (under, over, -1)):
        if time in _TIMES_NS and counted.removesuffix("s") in _COUNTED:
            return _TIMES_NS[time] * value**power, _COUNTED[counted.removesuffix("s")]
    return None


def parse_amount(text: str) -> tuple[float, str] | None:
    """Parse an amount such as ``5 ms``, ``14 GB``, ``10 %`` or ``3``, in any case.

    Returns:
        The amount in ``ns`` or ``bytes``, as a ``fraction`` or a ``count``, and which of these;
        None if the number or the unit is unknown.
    """
    found = re.fullmatch(_NUMBER + r" *([a-zµμ%]*)", text.lower())
    if found is None or (unit := re.sub("[µμ]", "u", found[2])) not in _AMOUNTS:
        return None
    scale, kind = _AMOUNTS[unit]
    return float(found[1].replace(",", "")) * scale, kind
