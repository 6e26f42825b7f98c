"""A headless browser, driven through the DevTools protocol over a pipe.

Owns the process and one page. It is independent of the content of the page.
"""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

Scheme = Literal["light", "dark"]

_TIMEOUT_S = 60.0
_FLAGS = (
    "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run",
    "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update",
    "--hide-scrollbars", "--force-color-profile=srgb",
)  # fmt: skip


class Page:
    """One page. ``console_errors`` has its console errors, warnings and uncaught exceptions."""

    def __init__(self, write_fd: int, read_fd: int) -> None:
        self.console_errors: list[str] = []
        self._write_fd = write_fd
        self._read_fd = read_fd
        self._rest = b""
        self._last_id = 0
        self._session: str | None = None
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def set_screen(self, width: int, height: int, scheme: Scheme = "light") -> None:
        """Emulate a screen of this size in CSS pixels; a width below 600 emulates a phone."""
        is_phone = width < 600
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=is_phone,
        )  # fmt: skip
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._call("Emulation.setEmulatedMedia", features=[feature])

    def open(self, url: str) -> None:
        """Navigate to a URL and wait until the document is loaded."""
        self._call("Page.navigate", url=url)
        self.wait_until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def leave(self) -> None:
        """Navigate to about:blank, so that the page sends no more requests."""
        self._call("Page.navigate", url="about:blank")

    def evaluate(self, expression: str) -> Any:
        """Evaluate a JavaScript expression in the page; return its value, which must be JSON.

        Raises:
            AssertionError: The expression throws.
        """
        answer = self._call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_until(self, condition: str) -> None:
        """Wait until a JavaScript expression is true."""
        deadline_s = time.monotonic() + _TIMEOUT_S
        while not self.evaluate(condition):
            assert time.monotonic() < deadline_s, f"timeout: {condition}\n{self.text()}"

    def text(self, selector: str = "body") -> str:
        """Return the visible text of an element."""
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    def wait_for_text(self, text: str, selector: str = "body") -> None:
        """Wait until an element shows a text."""
        place = f"document.querySelector({json.dumps(selector)}).innerText"
        self.wait_until(f"{place}.includes({json.dumps(text)})")

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the screen."""
        return int(
            self.evaluate(
                "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
        )

    def screenshot(self, path: Path) -> None:
        """Write a PNG file of the whole page."""
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self._call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip
        )
        path.write_bytes(base64.b64decode(shot["data"]))

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._last_id += 1
        message: dict[str, Any] = {"id": self._last_id, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write_fd, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._last_id:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])
            self._note(answer.get("method", ""), answer.get("params", {}))

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.console_errors.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.console_errors.append(json.dumps(params["entry"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.console_errors.append(json.dumps(params["args"]))

    def _read(self) -> dict[str, Any]:
        deadline_s = time.monotonic() + _TIMEOUT_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read_fd], [], [], deadline_s - time.monotonic())
            assert ready, "no message from the browser before the timeout"
            more = os.read(self._read_fd, 1 << 20)
            assert more, "the browser process exited"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))


@contextmanager
def running_browser(program: str, profile: Path) -> Iterator[Page]:
    """Run a browser with an empty profile in a folder; yields its page."""
    to_browser_r, to_browser_w = os.pipe()
    from_browser_r, from_browser_w = os.pipe()

    # With --remote-debugging-pipe the browser reads from descriptor 3 and writes to 4.
    wrapper = f'exec "$@" 3<&{to_browser_r} 4>&{from_browser_w}'
    with subprocess.Popen(
        ["bash", "-c", wrapper, "browser", program, *_FLAGS, f"--user-data-dir={profile}"],
        pass_fds=(to_browser_r, from_browser_w),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"HOME": str(profile)},
        start_new_session=True,
    ) as process:
        os.close(to_browser_r)
        os.close(from_browser_w)
        try:
            yield Page(to_browser_w, from_browser_r)
        finally:
            os.close(to_browser_w)
            os.close(from_browser_r)
            process.terminate()
