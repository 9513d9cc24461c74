"""How series are drawn: told apart by colour, by dashes and by marker, so by two without colour."""

from __future__ import annotations

from dataclasses import dataclass

PAPER_LIGHT = "#ffffff"
PAPER_DARK = "#15181d"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesStyle:
    """One way to draw a series.

    Args:
        light: Colour on ``PAPER_LIGHT``, at a contrast of 3 or more.
        dark: Colour on ``PAPER_DARK``, the same.
        dashes: Lengths of dash and gap in points; none for a solid line.
        marker: Its name in matplotlib.
        path: The marker as an SVG path around (0, 0), about 9 units wide.
    """

    light: str
    dark: str
    dashes: tuple[float, ...]
    marker: str
    path: str


# Okabe and Ito's colours, which people with any colour vision can tell apart, darkened or
# lightened where one would be too faint on its paper. The number of dashes and markers has no
# common divisor with that of colours, so that the pattern begins to repeat late.
_COLOURS = (
    ("#1f2328", "#f0f3f6"),
    ("#0072b2", "#56b4e9"),
    ("#c04c00", "#f39a4d"),
    ("#00785a", "#2fc79a"),
    ("#a8467f", "#e58fc0"),
    ("#8a6100", "#f0e442"),
    ("#6a4fc4", "#b9a8ff"),
)
_DASHES: tuple[tuple[float, ...], ...] = ((), (7.0, 3.0), (2.0, 2.5), (9.0, 3.0, 2.0, 3.0))
_MARKERS = (
    ("o", "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z"),
    ("s", "M-3.5,-3.5h7v7h-7z"),
    ("^", "M0,-4.6L4.4,3.4H-4.4z"),
    ("D", "M0,-4.8L4.8,0L0,4.8L-4.8,0z"),
    ("v", "M0,4.6L4.4,-3.4H-4.4z"),
)
NUM_COLOURS = len(_COLOURS)
PUBLISHED_PATH = "M0,-8L2,-2.7L7.7,-2.5L3.3,1.1L4.7,6.5L0,3.4L-4.7,6.5L-3.3,1.1L-7.7,-2.5L-2,-2.7z"


def style_of(number: int) -> SeriesStyle:
    """Return the style of the series with a number, counted from 0.

    Where there are more series than colours, colours come again with other dashes and markers.
    """
    light, dark = _COLOURS[number % len(_COLOURS)]
    marker, path = _MARKERS[number % len(_MARKERS)]
    return SeriesStyle(
        light=light, dark=dark, dashes=_DASHES[number % len(_DASHES)], marker=marker, path=path
    )


def colours(*, is_dark: bool) -> tuple[str, ...]:
    """Return the colours in turn, for light or for dark paper."""
    return tuple(pair[1 if is_dark else 0] for pair in _COLOURS)
