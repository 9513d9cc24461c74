"""Options and fixtures of all tests."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from breakeven.capture import Launcher

# Tests run beside each other: scripts with a thread per core would wait for one another's, many
# times longer than they compute.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What was measured of this machine's GPU must not decide what tests predict.
os.environ["BREAKEVEN_CALIBRATIONS"] = ""
# Nor must prices that this user has refreshed: no file has this name.
os.environ["BREAKEVEN_PRICES"] = os.devnull + "/prices.json"

# A shell starts what it runs in the background with Ctrl-C ignored, and nohup with SIGHUP, and so
# would be started the programs of which tests ask what these do to them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Machines differ, and a busy one is slow at times: no test may fail for that.
hypothesis.settings.register_profile(
    "breakeven", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("breakeven")

GOLDEN = Path(__file__).parent / "golden"
END_TO_END = Path(__file__).parent / "e2e"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden")
    parser.addoption("--update-frozen", action="store_true", help="rewrite tests/frozen/reports")
    parser.addoption(
        "--require-gpu", action="store_true", help="fail tests that need a GPU and find none"
    )


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark ``full`` tests as slow, and let some fail once, since machines stall at times.

    These are the tests that read a clock or wait for processes. Each such failure is listed in the
    summary, and in the file that ``RERUNS_FILE`` names.
    """
    for item in items:
        if item.get_closest_marker("full"):
            item.add_marker(pytest.mark.slow)
        if END_TO_END in item.path.parents or item.get_closest_marker("timing"):
            item.add_marker(pytest.mark.flaky(reruns=1))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # A process that runs tests for another one tells that one, which gets here as well.
    path = os.environ.get("RERUNS_FILE")
    if path and report.outcome == "rerun" and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{report.nodeid}\n")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is None:
        return
    import torch  # only where a GPU test was selected

    if torch.cuda.is_available():
        return
    if item.config.getoption("--require-gpu"):
        pytest.fail("this test needs a GPU, and --require-gpu was given", pytrace=False)
    pytest.skip("needs a GPU")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count the hostile scripts that changed and left nothing, in all processes that ran them."""
    found = Counter(
        value
        for report in terminalreporter.stats.get("passed", ())
        for name, value in report.user_properties
        if name == "hostile"
    )
    if found:
        told = ", ".join(f"{how} {found[how]}" for how in ("answered", "refused"))
        number = found.total()
        terminalreporter.write_line(
            f"hostile scripts: {number}, {told}, changed nothing, left nothing"
        )


@pytest.fixture
def check_golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Return a function that compares text with a file of tests/golden, or rewrites the file.

    Spaces at the ends of lines, which a terminal does not show, are not compared.
    """

    def check(name: str, text: str) -> None:
        shown = "".join(line.rstrip() + "\n" for line in text.splitlines())
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(shown, encoding="utf-8")
        assert path.is_file(), f"no {path.name}: run pytest --update-golden and read the result"
        assert shown == path.read_text(encoding="utf-8")

    return check


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    """Return what runs scripts; torch is imported once for all tests that leave it as it is."""
    from breakeven.capture import Launcher  # only where a test runs a script

    with Launcher() as started:
        yield started
