"""Debian's headless Chromium, spoken to by the DevTools protocol over a pipe: no driver, no port."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

EXECUTABLE = shutil.which("chromium")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
SECONDS = 60.0

needs_chromium = pytest.mark.skipif(
    EXECUTABLE is None,
    reason="Debian's chromium is not installed (`make test` installs it as root where there is apt-get)",
)

# Pictures further down load only once a reader comes near; here they all have to.
LOAD_PICTURES = """
Promise.all([...document.images].map(async picture => {
  picture.loading = "eager";
  try { await picture.decode() } catch { return picture.src }
})).then(broken => broken.filter(Boolean))
"""
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@dataclass
class Visit:
    """What a page did while it was open at one width."""

    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    broken_pictures: list[str] = field(default_factory=list)
    too_wide: int = 0

    @property
    def problems(self) -> dict[str, Any]:
        """What a page that opens from disk must not have, by name; empty if all is well."""
        elsewhere = [url for url in self.requests if not url.startswith(("file:", "data:", "blob:"))]
        found = {
            "requests elsewhere": elsewhere,
            "console errors": self.errors,
            "broken pictures": self.broken_pictures,
            "pixels too wide": self.too_wide,
        }
        return {name: value for name, value in found.items() if value}


class Browser:
    """One tab: commands are answered in order, events are kept by the visit they belong to."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._buffer, self._number, self._visit = b"", 0, Visit()
        self._session: dict[str, str] = {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._session = {"sessionId": session}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _messages(self) -> Iterator[dict[str, Any]]:
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            message, end, rest = self._buffer.partition(b"\0")
            if end:
                self._buffer = rest
                yield json.loads(message)
                continue
            more = os.read(self._read, 2**16)
            assert more, "Chromium closed its pipe"
            self._buffer += more
        raise TimeoutError(f"Chromium did not answer within {SECONDS:g} s")

    def _note(self, message: dict[str, Any]) -> None:
        event, values = message.get("method", ""), message.get("params", {})
        if event == "Network.requestWillBeSent":
            self._visit.requests.append(values["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self._visit.errors.append(values["exceptionDetails"]["text"])
        elif event == "Runtime.consoleAPICalled" and values["type"] == "error":
            self._visit.errors.append(str(values["args"]))
        elif event == "Log.entryAdded" and values["entry"]["level"] == "error":
            self._visit.errors.append(values["entry"]["text"])

    def call(self, method: str, **values: Any) -> dict[str, Any]:
        """Send one command; returns its result, raises RuntimeError if Chromium refuses."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": values} | self._session
        os.write(self._write, json.dumps(command).encode() + b"\0")
        for message in self._messages():
            self._note(message)
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]
        raise AssertionError  # pragma: no cover

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression (or of the promise that it is)."""
        found = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def visit(self, page: Path, width: int) -> Visit:
        """Open a file at a width in pixels, load every picture, and say what happened."""
        self._visit = Visit()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.call("Page.navigate", url=page.resolve().as_uri())
        for message in self._messages():
            self._note(message)
            if message.get("method") == "Page.loadEventFired":
                break
        self._visit.broken_pictures = self.evaluate(LOAD_PICTURES)
        self._visit.too_wide = self.evaluate(TOO_WIDE)
        return self._visit


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A browser with a fresh profile folder, ended with the block."""
    to_browser, from_us = os.pipe()
    to_us, from_browser = os.pipe()
    # Chromium reads commands from descriptor 3 and writes to 4.
    redirect = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
    process = subprocess.Popen(
        ["bash", "-c", redirect, str(EXECUTABLE), *FLAGS, f"--user-data-dir={profile}"],
        pass_fds=(to_browser, from_browser),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_browser)
    os.close(from_browser)
    try:
        yield Browser(to_us, from_us)
    finally:
        process.kill()
        process.wait()
        os.close(from_us)
        os.close(to_us)
