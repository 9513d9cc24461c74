"""Text that is safe to show, and figures whose digits follow their interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from breakeven.units import format_digits, format_duration

_MIN_DIGITS = 2
_MAX_DIGITS = 3
# Closer to 1 than this, two digits would call a difference "1×".
_NEAR_ONE = 0.095


def printable(text: str, max_characters: int | None = 300) -> str:
    r"""Return ``text`` in one line that cannot steer a terminal, shortened in the middle.

    File names and messages of scripts may hold escape sequences, line breaks, text-direction
    marks and bytes that are not UTF-8; they come out as ``\x1b``, a space, ``\u202e`` and
    ``\udcff``.

    Args:
        text: Any text.
        max_characters: Where to cut; ``None`` for nowhere.
    """
    line = text
    if not text.isprintable():
        line = "".join(_printable_character(character) for character in text)
    if max_characters is None:
        return line
    return shorten(line, max_characters)


def shorten(text: str, max_characters: int) -> str:
    """Return ``text`` with its middle replaced by ``…`` where it is longer than allowed."""
    if len(text) <= max_characters:
        return text
    num_kept = max(max_characters - 1, 0)
    # The end of a path says more than its beginning.
    num_last = (num_kept + 1) // 2
    return text[: num_kept - num_last] + "…" + text[len(text) - num_last :]


def duration_with_interval(value_ns: float, low_ns: float, high_ns: float) -> str:
    """Return ``2.8 ms (2.2–3.4)``; without an interval, ``2.8 ms`` alone."""
    if low_ns == high_ns:
        return format_duration(value_ns)
    text, low, high = _with_digits((value_ns, low_ns, high_ns), format_duration)
    figures = [figure.rpartition(" ") for figure in (text, low, high)]
    if len({unit for _, _, unit in figures}) == 1:
        return f"{text} ({figures[1][0]}–{figures[2][0]})"
    return f"{text} ({low}–{high})"


def ratio_with_interval(value: float, low: float, high: float) -> str:
    """Return ``14× (11–17×)``; without an interval, ``14×`` alone."""
    if low == high:
        return f"{format_digits(value)}×"
    text, low_text, high_text = _with_digits((value, low, high), format_digits)
    return f"{text}× ({low_text}–{high_text}×)"


def ratio_alone(value: float) -> str:
    """Return a ratio for a table cell: ``14×``, ``0.43×``, ``1.04×``."""
    return f"{format_digits(value, 3 if 0 < abs(value - 1) < _NEAR_ONE else 2)}×"


def ratio_range(low: float, high: float) -> str:
    """Return the ends of a ratio that nothing between is likelier for: ``0.4–160×``."""
    return f"{ratio_alone(low).removesuffix('×')}–{ratio_alone(high)}"


def plural(count: int, noun: str) -> str:
    """Return ``1 kernel`` or ``1,200 kernels``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(texts: Sequence[str], most: int) -> str:
    """Return ``T4, A100 and 3 more``: at most so many in full."""
    rest = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {rest:,} more" if rest > 0 else "")


class _Formatter(Protocol):
    def __call__(self, value: float, digits: int, /, *, keeps_zeros: bool) -> str: ...


def _with_digits(interval: tuple[float, float, float], as_text: _Formatter) -> list[str]:
    """Return value, low and high, all to the decimal place that the interval leaves sure.

    An end much larger than the value is cut to three digits: its last ones would say nothing.
    """
    value, low, high = interval
    half_width = (high - low) / 2
    digits = _MAX_DIGITS
    if value > 0 and half_width > 0:
        digits = _magnitude(value) - _magnitude(half_width) + 1
        digits = min(max(digits, _MIN_DIGITS), _MAX_DIGITS)

    def digits_of(figure: float) -> int:
        same_place = digits + _magnitude(figure) - _magnitude(value)
        return min(max(same_place, 1), _MAX_DIGITS) if figure > 0 else 1

    return [as_text(figure, digits_of(figure), keeps_zeros=True) for figure in interval]


def _magnitude(figure: float) -> int:
    return math.floor(math.log10(figure)) if figure > 0 else 0


def _printable_character(character: str) -> str:
    if character.isprintable():
        return character
    if character.isspace():
        return " "
    return character.encode("unicode_escape").decode("ascii")
