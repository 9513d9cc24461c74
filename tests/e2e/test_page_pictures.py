"""What pages look like, against small stored pictures, within a tolerance for fonts."""

from __future__ import annotations

import io
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from headless_browser import CHROMIUM, Browser
from PIL import Image, ImageChops, ImageFilter, ImageStat

from breakeven.report import chart_document
from factories import reports, sweeps


def _has_font() -> bool:
    if shutil.which("fc-match") is None:
        return False
    found = subprocess.run(["fc-match", "sans"], capture_output=True, text=True, check=False)
    return "DejaVu" in found.stdout


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs the browser chromium on PATH"),
    pytest.mark.skipif(not _has_font(), reason="the pictures are set in DejaVu Sans"),
]
_FOLDER = Path(__file__).parents[1] / "golden" / "pictures"
# Grey levels from 0 to 255, as means of the whole picture and of its cells after a blur. Another
# font changes at most 1.8 and 9; a missing chart at least 4.1 and 25; its curves 1.3 and 17.
_MOST_MEAN, _MOST_LOCAL = 2.0, 10.0
_BLUR, _CELL = 2, 18


@dataclass(frozen=True)
class Picture:
    """A page in a window of ``width`` × ``height`` pixels, stored ``stored_width`` pixels wide."""

    make: Callable[[], Any]
    width: int
    height: int
    stored_width: int
    medium: str = ""
    scheme: str = "light"

    def take(self, browser: Browser, folder: Path, css: str = "") -> Image.Image:
        page = folder / "report.html"
        page.write_bytes(chart_document(self.make(), ".html"))
        scheme = {"name": "prefers-color-scheme", "value": self.scheme}
        browser.call("Emulation.setEmulatedMedia", media=self.medium, features=[scheme])
        try:
            browser.open(page.as_uri(), width=self.width, height=self.height)
            sheet = "const own = new CSSStyleSheet(); own.replaceSync(css)"
            browser.evaluate(
                f"(css => {{ {sheet}; document.adoptedStyleSheets = [own] }})({css!r})"
            )
            picture = Image.open(io.BytesIO(browser.screenshot())).convert("L")
        finally:
            browser.call("Emulation.setEmulatedMedia", media="")
        size = (self.stored_width, picture.height * self.stored_width // picture.width)
        return picture.resize(size, Image.Resampling.BOX)


PICTURES = {
    "check": Picture(reports.cpu_wins, 1_200, 1_000, 240),
    "check_dark": Picture(reports.cpu_wins, 1_200, 1_000, 240, scheme="dark"),
    "check_phone": Picture(reports.cpu_wins, 400, 900, 160),
    "check_print": Picture(reports.cpu_wins, 800, 1_000, 240, medium="print"),
    "sweep": Picture(sweeps.widths, 1_200, 1_000, 240),
}


def is_alike(one: Image.Image, other: Image.Image) -> bool:
    """Return whether two pictures differ by no more than fonts do."""
    if one.size != other.size:
        return False
    blurred = (each.filter(ImageFilter.GaussianBlur(_BLUR)) for each in (one, other))
    difference = ImageChops.difference(*blurred)
    cells = (one.width // _CELL, one.height // _CELL)
    ((_, local),) = ImageStat.Stat(difference.resize(cells, Image.Resampling.BOX)).extrema
    return ImageStat.Stat(difference).mean[0] <= _MOST_MEAN and local <= _MOST_LOCAL


@pytest.mark.parametrize("name", PICTURES)
def test_a_page_looks_like_its_stored_picture(
    name: str, browser: Browser, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path, picture = _FOLDER / f"{name}.png", PICTURES[name]
    taken = picture.take(browser, tmp_path)
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(exist_ok=True)
        taken.quantize(16).save(path, optimize=True)
    assert path.is_file(), f"no {path.name}: run pytest --update-golden and look at the result"
    stored = Image.open(path).convert("L")
    if not is_alike(stored, taken):
        taken.save(tmp_path / f"{name}.png")
        pytest.fail(f"the page has changed: compare {tmp_path}/{name}.png with {path}")
    # The tolerance is for another font, and not for a page without its curves.
    assert is_alike(stored, picture.take(browser, tmp_path, "body { font-family: DejaVu Serif }"))
    for missing in ("figure { visibility: hidden }", "g.series { display: none }"):
        assert not is_alike(stored, picture.take(browser, tmp_path, missing))
