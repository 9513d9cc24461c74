"""Times and counts on a command line, as people write them."""

from __future__ import annotations

import argparse
import re

_UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def duration_s(text: str) -> float:
    """Return ``60``, ``60s``, ``2m`` or ``1h`` in seconds.

    Raises:
        argparse.ArgumentTypeError: It is no time above 0.
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(s|min|m|h|)", text)
    seconds = float(found[1]) * _UNITS_S[found[2]] if found else 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time above 0, such as 30s or 2m")
    return seconds


def whole_number(text: str) -> int:
    """Return ``10000``, ``10,000`` or ``10_000`` as a number.

    Raises:
        argparse.ArgumentTypeError: It is no whole number above 0.
    """
    digits = re.sub("[_,]", "", text)
    # Python itself refuses to read numbers of thousands of digits.
    if not re.fullmatch(r"[0-9]{1,18}", digits) or not text[0].isdigit() or not int(digits):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(digits)
