"""Text that is safe to show, and figures whose digits follow their interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from breakeven.trace import line_text
from breakeven.units import format_digits, format_duration

# Signs of reports for terminals without them.
ASCII = str.maketrans(
    dict(zip("●○◆▪×–·µ▲▼╳━─│┤┴└₂", "*o#=x-|u^vX=-||++2", strict=True))
    | {"→": "->", "…": "...", "±": "+/-"}
    | dict.fromkeys("█▏▎▍▌▋▊▉▐▕", "#")
    | {chr(0x2800 + dots): "." for dots in range(1, 256)}
)
# Closer to 1 than this, two digits would print a difference as "1×".
_NEAR_ONE = 0.095


def printable(text: str, max_characters: int | None = 300) -> str:
    r"""Return ``text`` in one line that cannot steer a terminal, shortened in the middle.

    Escape sequences, line breaks, text-direction marks and bytes that are not UTF-8 become
    ``\x1b``, a space, ``\u202e`` and ``\udcff``.

    Args:
        text: Any text.
        max_characters: Maximum length; ``None`` for no limit.
    """
    if not text.isprintable():
        text = "".join(
            character
            if character.isprintable()
            else (" " if character.isspace() else character.encode("unicode_escape").decode())
            for character in text
        )
    return text if max_characters is None else shorten(text, max_characters)


def shorten(text: str, max_characters: int) -> str:
    """Return ``text``; if it is too long, replace its middle by ``…``."""
    if len(text) <= max_characters:
        return text
    num_kept = max(max_characters - 1, 0)
    # The end of a path says more than its start.
    num_last = (num_kept + 1) // 2
    return text[: num_kept - num_last] + "…" + text[len(text) - num_last :]


def place_text(file: str | None, line: int | None, room: int | None = None) -> str:
    """Return ``file:line`` unbroken, so that terminals link it; empty without a file.

    A line of a notebook is shown as ``train.ipynb cell 3, line 2``.

    Args:
        file: Path of the file; of an absolute one, only the name is kept.
        line: Line number, never cut; None for the whole file.
        room: Maximum length in characters.
    """
    if file is None:
        return ""
    name = file.replace("\\", "/").rpartition("/")[2]
    is_absolute = file.startswith("/") or file[1:3] in (":\\", ":/")
    path = printable(name if is_absolute else file, None)
    end = "" if line is None else line_text(file, line)
    return (path if room is None else shorten(path, max(room - len(end), 8))) + end


def plural(count: int, noun: str) -> str:
    """Return ``1 kernel`` or ``1,200 kernels``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(texts: Sequence[str], most: int) -> str:
    """Return ``T4, A100 and 3 more``."""
    rest = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {rest:,} more" if rest > 0 else "")


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return nested lists and dictionaries with every text changed by ``change``."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {with_texts(key, change): with_texts(one, change) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [with_texts(member, change) for member in value]
    return value


def duration_with_interval(value_ns: float, low_ns: float, high_ns: float) -> str:
    """Return ``2.8 ms (2.2–3.4)``; without an interval, ``2.8 ms``."""
    if low_ns == high_ns:
        return format_duration(value_ns)
    texts = _with_digits((value_ns, low_ns, high_ns), format_duration)
    figures = [text.rpartition(" ") for text in texts]
    if len({unit for _, _, unit in figures}) == 1:
        return f"{texts[0]} ({figures[1][0]}–{figures[2][0]})"
    return f"{texts[0]} ({texts[1]}–{texts[2]})"


def ratio_with_interval(value: float, low: float, high: float) -> str:
    """Return ``14× (11–17×)``; without an interval, ``14×``."""
    if low == high:
        return f"{format_digits(value)}×"
    text, low_text, high_text = _with_digits((value, low, high), format_digits)
    return f"{text}× ({low_text}–{high_text}×)"


def ratio_alone(value: float) -> str:
    """Return a ratio for a table cell: ``14×``, ``0.43×``, ``1.04×``."""
    return f"{format_digits(value, 3 if 0 < abs(value - 1) < _NEAR_ONE else 2)}×"


def _with_digits(
    interval: tuple[float, float, float], as_text: Callable[..., str]
) -> tuple[str, ...]:
    """Return value, low and high, all to the last decimal place that the interval supports.

    An end much larger than the value has only three digits.
    """

    def magnitude(figure: float) -> int:
        return math.floor(math.log10(figure)) if figure > 0 else 0

    value, low, high = interval
    half_width = (high - low) / 2
    digits = 3
    if value > 0 and half_width > 0:
        digits = min(max(magnitude(value) - magnitude(half_width) + 1, 2), 3)
    same_place = [digits + magnitude(figure) - magnitude(value) for figure in interval]
    return tuple(
        as_text(figure, min(max(place, 1), 3) if figure > 0 else 1, keeps_zeros=True)
        for figure, place in zip(interval, same_place, strict=True)
    )
