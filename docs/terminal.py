"""Draw what a terminal showed as an SVG, still or moving, in the reader's light or dark theme."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

import pyte

COLUMNS = 80
# More than any answer has.
_MAX_ROWS = 400
_CHARACTER_WIDTH, _LINE_HEIGHT, _MARGIN = 8.4, 19, 14
# How long to show a screen; how fast to scroll.
_HOLD_S, _ROWS_PER_S, _SCROLLED_ROWS = 4.0, 6.0, 3
# Contrast with the paper is at least 4.5 to 1 in both themes.
_COLOURS = {
    "paper": ("#f6f8fa", "#161b22"),
    "ink": ("#1f2328", "#d1d7e0"),
    "dim": ("#59636e", "#9198a1"),
    "red": ("#b3261e", "#ff7b72"),
    "green": ("#116329", "#56d364"),
    "brown": ("#7d4e00", "#e3b341"),
    "blue": ("#0a53a8", "#79c0ff"),
    "magenta": ("#7a31b8", "#d2a8ff"),
    "cyan": ("#0b6169", "#56d4dd"),
}
_STYLE_CODES = re.compile(r"\x1b\[([\d;]*)m")


class Terminal:
    """A terminal of 80 columns in which nothing scrolls away."""

    def __init__(self) -> None:
        self.screen = pyte.Screen(COLUMNS, _MAX_ROWS)
        self.screen.set_mode(pyte.modes.LNM)
        self._stream = pyte.Stream(self.screen)

    def feed(self, text: str) -> None:
        """Show text with its control sequences."""
        # pyte drops "dim" (2), and breakeven strikes nothing through (9).
        self._stream.feed(
            _STYLE_CODES.sub(
                lambda found: f"\x1b[{re.sub(r'(?<![0-9;])2(?![0-9])', '9', found[1])}m", text
            )
        )

    def rows(self) -> list[tuple[int, str]]:
        """Return the rows with text, as SVG, and their numbers."""
        drawn = ((number, _row(self.screen.buffer[number])) for number in range(_MAX_ROWS))
        return [(number, row) for number, row in drawn if row]


def still(text: str) -> str:
    """Return the picture of a text with control sequences."""
    terminal = Terminal()
    terminal.feed(text)
    rows = terminal.rows()
    num_rows = rows[-1][0] + 1
    return _document(num_rows, "".join(f"<text{_place(n)}>{row}</text>" for n, row in rows), "")


def moving(events: Sequence[tuple[float, str]], *, num_rows: int) -> str:
    """Return the picture of a recording, which scrolls through long output and then begins again.

    Args:
        events: Seconds since the start, and the text written then.
        num_rows: Rows that are in view.
    """
    views = list(_views(events, num_rows))
    end_s = views[-1][0] + _HOLD_S
    names: dict[str, str] = {}
    style, body = [], []
    for number, (second, rows) in enumerate(views):
        is_last = number == len(views) - 1
        hidden = "" if is_last else f"{100 * views[number + 1][0] / end_s:.2f}%{{opacity:0}}"
        style.append(
            f"@keyframes k{number}{{0%{{opacity:0}}{100 * second / end_s:.2f}%{{opacity:1}}"
            f"{hidden}}}.k{number}{{animation-name:k{number}}}"
        )
        lines = "".join(
            f'<use href="#{names.setdefault(row, f"r{len(names)}")}"{_place(place)}/>'
            for place, row in rows
        )
        body.append(f'<g class="f k{number}{" last" * is_last}">{lines}</g>')
    # The names must follow the shorthand, which resets them.
    style.insert(0, f".f{{opacity:0;animation:{end_s:.1f}s step-end infinite}}")
    style.append("@media (prefers-reduced-motion:reduce){.f{animation:none}.last{opacity:1}}")
    shared = "".join(f'<text id="{name}">{row}</text>' for row, name in names.items())
    return _document(num_rows, f"<defs>{shared}</defs>{''.join(body)}", "".join(style))


def _views(
    events: Sequence[tuple[float, str]], num_rows: int
) -> Iterator[tuple[float, list[tuple[int, str]]]]:
    """Yield the second of each change, and the rows in view with their places."""
    terminal = Terminal()
    late_s, before = 0.0, dict[int, str]()
    for second, text in events:
        terminal.feed(text)
        rows = dict(terminal.rows())
        if rows == before:
            continue
        end = max(0, max(rows, default=0) + 1 - num_rows)
        new = min((n for n in rows if before.get(n) != rows[n]), default=0)
        # Output longer than the view begins below its command, and is scrolled through.
        top = min(end, max(0, new - 1))
        tops = [top] if end - top < _SCROLLED_ROWS else [*range(top, end, _SCROLLED_ROWS), end]
        if len(tops) == 1:
            tops = [end]
        for number, top in enumerate(tops):
            in_view = [(n - top, row) for n, row in rows.items() if top <= n < top + num_rows]
            yield second + late_s, in_view
            if number < len(tops) - 1:
                late_s += _HOLD_S if number == 0 else _SCROLLED_ROWS / _ROWS_PER_S
        late_s += _HOLD_S / 2 if len(tops) > 1 else 0.0
        before = rows


def _place(row: int) -> str:
    return f' y="{_MARGIN + (row + 0.75) * _LINE_HEIGHT:g}"'


def _row(cells: dict[int, pyte.screens.Char]) -> str:
    return "".join(
        f'<tspan x="{_MARGIN + column * _CHARACTER_WIDTH:.1f}" '
        f'textLength="{len(words) * _CHARACTER_WIDTH:.1f}"{style}>{escape(words, quote=False)}'
        "</tspan>"
        for column, words, style in _pieces(cells)
    )


def _pieces(cells: dict[int, pyte.screens.Char]) -> Iterator[tuple[int, str, str]]:
    """Yield the words of a row with their column and style, apart where columns of a table are."""
    column = 0
    for style, group in groupby((cells[number] for number in range(COLUMNS)), _style):
        text = "".join(cell.data for cell in group)
        for words in re.finditer(r"\S+(?: \S+)*", text):
            yield column + words.start(), words[0], style
        column += len(text)


def _style(cell: pyte.screens.Char) -> str:
    colour = "dim" if cell.strikethrough else cell.fg.removeprefix("bright")
    names = [colour] if colour in _COLOURS else []
    names += ["bold"] if cell.bold else []
    return f' class="{" ".join(names)}"' if names else ""


def _document(num_rows: int, body: str, style: str) -> str:
    width = 2 * _MARGIN + COLUMNS * _CHARACTER_WIDTH
    height = 2 * _MARGIN + num_rows * _LINE_HEIGHT
    light, dark = (
        "".join(f"--{name}:{pair[theme]};" for name, pair in _COLOURS.items()) for theme in (0, 1)
    )
    classes = "".join(f".{name}{{fill:var(--{name})}}" for name in _COLOURS)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}">\n'
        f"<style>svg{{{light}}}@media (prefers-color-scheme:dark){{svg{{{dark}}}}}"
        "text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
        f"fill:var(--ink);white-space:pre}}{classes}.bold{{font-weight:bold}}{style}</style>\n"
        f'<clipPath id="view"><rect width="{width:g}" height="{height - _MARGIN:g}"/></clipPath>'
        f'<rect class="paper" width="{width:g}" height="{height:g}" rx="8"/>\n'
        f'<g clip-path="url(#view)">{body}</g>\n</svg>\n'
    )
