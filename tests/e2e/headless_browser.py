"""A real Chromium without a window, driven over its debugging pipe."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")
_TIMEOUT_S = 60.0
# The browser reads from descriptor 3 and writes to 4.
_HAND_ON = """\
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One browser with one page at a time; everything it logs or asks for is kept."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        to_browser, self._write_end = os.pipe()
        self._read_end, from_browser = os.pipe()
        command = [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--no-first-run", "--disable-background-networking", f"--user-data-dir={profile}",
            "--remote-debugging-pipe", "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-c", _HAND_ON, str(to_browser), str(from_browser), *command],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._session: str | None = None
        self._answer: dict[str, Any] | None = None
        self.messages: list[str] = []
        self.requests: list[str] = []
        try:
            self._attach()
        except BaseException:
            self._end()
            raise

    def _attach(self) -> None:
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target for target in targets if target["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def open(self, url: str, *, width: int = 1_100, height: int = 1_500) -> None:
        """Load a page and wait until it is there."""
        self.messages.clear()
        self.requests.clear()
        self._is_loaded = False
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Page.navigate", url=url)
        self._read_until(lambda: self._is_loaded)

    def prefer(self, scheme: str) -> None:
        """Prefer ``light`` or ``dark`` from now on."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])

    def evaluate(self, expression: str) -> Any:
        """Return the value of an expression of the page's, when its promise is kept."""
        options = {"returnByValue": True, "awaitPromise": True, "userGesture": True}
        answer = self.call("Runtime.evaluate", expression=expression, **options)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press and let go of a key, such as ``Tab`` or ``ArrowRight``."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36}
        codes |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown" if text else "rawKeyDown", "keyUp"):
            press = {"key": key, "code": key, "windowsVirtualKeyCode": codes[key], **text}
            self.call("Input.dispatchKeyEvent", type=kind, **press)

    def point_at(self, x: float, y: float) -> None:
        """Move the pointer there, in pixels of the window."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self) -> bytes:
        """Return the visible part of the page as a PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])

    def pdf(self) -> bytes:
        """Return the page as it prints."""
        return base64.b64decode(self.call("Page.printToPDF")["data"])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its answer."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write_end, json.dumps(message).encode() + b"\0")
        self._answer = None
        self._read_until(lambda: (self._answer or {}).get("id") == number)
        assert self._answer is not None
        assert "error" not in self._answer, self._answer
        return self._answer["result"]

    def close(self) -> None:
        """End the browser and its children."""
        try:
            self._session = None
            self.call("Browser.close")
            self._process.wait(timeout=20)
        finally:
            self._end()

    def _end(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._write_end)
        os.close(self._read_end)

    def _read_until(self, is_done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        while not is_done():
            while b"\0" not in self._buffer:
                left = max(deadline - time.monotonic(), 0)
                ready, _, _ = select.select([self._read_end], [], [], left)
                assert ready, "the browser does not answer"
                data = os.read(self._read_end, 1 << 20)
                assert data, "the browser went away"
                self._buffer += data
            line, _, self._buffer = self._buffer.partition(b"\0")
            self._note(json.loads(line))

    def _note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        if "id" in message:
            self._answer = message
        match message.get("method"):
            case "Page.loadEventFired":
                self._is_loaded = True
            case "Runtime.exceptionThrown":
                self.messages.append(json.dumps(parameters["exceptionDetails"]))
            case "Runtime.consoleAPICalled":
                self.messages.append(json.dumps(parameters["args"]))
            case "Log.entryAdded":
                self.messages.append(json.dumps(parameters["entry"]))
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])
            case _:
                pass
