"""Headless Chromium for tests, driven through the DevTools protocol on two pipes.

Debian's package `chromium` is enough: WebGPU runs on SwiftShader, which it brings along. Where it
is not installed these tests are skipped, but not in CI.
"""

from __future__ import annotations

import functools
import http.server
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

__all__ = ["Page", "needs_browser", "page_of"]

NAMES = ("chromium", "chromium-browser", "google-chrome")
FOUND = next(filter(None, map(shutil.which, NAMES)), None)
needs_browser = pytest.mark.skipif(
    FOUND is None and not os.environ.get("CI"), reason="there is no Chromium to run pages in"
)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--enable-unsafe-webgpu",
    "--use-webgpu-adapter=swiftshader",
    "--enable-features=Vulkan",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
# The browser reads from file 3 and writes to file 4.
LAUNCH = """
import fcntl, os, sys
high = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
os.dup2(high[0], 3)
os.dup2(high[1], 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""
SECONDS = 120  # for an answer: a busy machine compiles kernels slowly


class _Quiet(http.server.SimpleHTTPRequestHandler):
    """A server of files that says nothing."""

    def log_message(self, format: str, *args: Any) -> None:
        return

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:  # the browser has gone
            return


class Page:
    """A page of the browser; `errors` are exceptions and messages that it printed."""

    def __init__(self, process: subprocess.Popen[bytes], to: int, back: int, address: str):
        self.address, self.errors = address, list[str]()
        self._process, self._to, self._back = process, to, back
        self._numbers, self._rest, self._session = itertools.count(1), b"", ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a command of the protocol."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        late = threading.Timer(SECONDS, self._process.kill)
        late.start()
        try:
            while (answer := self._next()).get("id") != number:
                self._note(answer)
        finally:
            late.cancel()
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = os.read(self._back, 1 << 20)
            if not more:
                raise TimeoutError(f"the browser ended, or said nothing for {SECONDS} s")
            self._rest += more
        first, self._rest = self._rest.split(b"\0", 1)
        return json.loads(first)

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and params["entry"]["level"] != "verbose":
            self.errors.append(params["entry"]["text"])

    def open(self, path: str) -> None:
        """Go to a file of the folder that is served."""
        self.errors.clear()
        self.call("Page.navigate", url=f"{self.address}/{path}")
        self.evaluate("new Promise((f) => document.readyState === 'complete' ? f()"
                      " : addEventListener('load', f))")  # fmt: skip

    def evaluate(self, text: str) -> Any:
        """The value of an expression, awaited; an exception is one here."""
        found = self.call(
            "Runtime.evaluate", expression=text, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            thrown = found["exceptionDetails"].get("exception", {})
            raise RuntimeError(thrown.get("description") or str(found["exceptionDetails"]))
        return found["result"].get("value")


@contextmanager
def page_of(folder: Path) -> Iterator[Page]:
    """A page of a new browser, to which a folder is served."""
    handler = functools.partial(_Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    theirs, to = os.pipe()
    back, theirs_too = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                LAUNCH,
                str(theirs),
                str(theirs_too),
                FOUND or NAMES[0],
                *FLAGS,
                f"--user-data-dir={profile}",
            ],
            pass_fds=(theirs, theirs_too),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs)
        os.close(theirs_too)
        try:
            yield Page(process, to, back, f"http://127.0.0.1:{server.server_port}")
        finally:
            process.terminate()
            process.wait()
            os.close(to)
            os.close(back)
            server.shutdown()
            server.server_close()
