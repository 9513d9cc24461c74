"""List the tests that needed a second try, and fail where one did so in two runs.

``python .ci/reruns.py NOW LAST``: ``NOW`` has a line for each test that needed a second try in this
run, ``LAST`` those of the run before it on this machine, and is replaced. A machine stalls at
times, so once is no matter; twice is the test's own fault.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path


def main(now: Path, last: Path) -> int:
    """Return the exit code."""
    tests = Counter(_lines(now))
    # One that two stages of a run have in common counts twice, too.
    known = tests + Counter(set(_lines(last)))
    last.write_text("".join(f"{test}\n" for test in sorted(tests)), encoding="utf-8")
    for test in sorted(tests):
        again = "; not for the first time: mend the test" if known[test] > 1 else ""
        sys.stdout.write(f"second try: {test}{again}\n")
    return int(any(known[test] > 1 for test in tests))


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
