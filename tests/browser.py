"""A headless Chromium, driven over the pipe of its DevTools protocol.  No library, no port."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # the tests may run as root, where there is none to be had
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--lang=en-US",
    # Nothing but this machine: a page that needs the network fails here.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)


class BrowserError(AssertionError):
    """What a page, or the browser, refused to do."""


class Browser:
    """One browser with one page.  problems: what its console and its network complained of."""

    def __init__(self, width: int = 1100, height: int = 900) -> None:
        assert CHROMIUM
        self._home = tempfile.TemporaryDirectory(prefix="penstock-browser-")
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        command = [
            CHROMIUM,
            *FLAGS,
            "--remote-debugging-pipe",
            f"--user-data-dir={self._home.name}",
        ]
        # The browser reads descriptor 3 and writes descriptor 4.
        script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command, "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": self._home.name},
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._number, self._buffer, self._answers = 0, b"", {}
        self.problems: list[str] = []
        self.requested: list[str] = []
        self._session: str | None = None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        found = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.resize(width, height)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *error: object) -> None:
        self._session = None
        try:
            self.ask("Browser.close")
        except (BrowserError, OSError):
            self._process.kill()
        self._process.wait(240)
        os.close(self._out)
        os.close(self._in)
        for _ in range(50):  # its children may still be writing
            shutil.rmtree(self._home.name, ignore_errors=True)
            if not Path(self._home.name).exists():
                break
            time.sleep(0.05)
        self._home.cleanup()

    def ask(self, method: str, timeout_s: float = 240, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol and its answer."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + timeout_s
        while number not in self._answers:
            self._receive(until, method)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self, until: float, why: str) -> None:
        ready, _, _ = select.select([self._in], [], [], max(0, until - time.monotonic()))
        got = os.read(self._in, 1 << 20) if ready else b""
        if not got:
            raise BrowserError(f"{why}: no answer from the browser")
        *messages, self._buffer = (self._buffer + got).split(b"\0")
        for text in messages:
            message = json.loads(text)
            if "id" in message:
                self._answers[message["id"]] = message
            else:
                self._hear(message["method"], message["params"])

    def _hear(self, event: str, told: dict[str, Any]) -> None:
        if event == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(arg.get("value", arg)) for arg in told["args"]))
        elif event == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            self.problems.append(details.get("exception", details).get("description", str(details)))
        elif event == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.problems.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")
        elif event == "Network.requestWillBeSent":
            self.requested.append(told["request"]["url"])

    def resize(self, width: int, height: int) -> None:
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def prefer(self, scheme: str) -> None:
        """ "dark" or "light"."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.ask("Emulation.setEmulatedMedia", features=[feature])

    def scripts(self, are_on: bool) -> None:
        self.ask("Emulation.setScriptExecutionDisabled", value=not are_on)

    def open(self, address: str) -> None:
        self.problems.clear()
        self.requested.clear()
        found = self.ask("Page.navigate", url=address)
        if "errorText" in found:
            raise BrowserError(f"{address}: {found['errorText']}")

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is waited for."""
        found = self.ask(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise BrowserError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def wait(self, expression: str, timeout_s: float = 240) -> Any:
        """Waits until an expression is true; its value."""
        until = time.monotonic() + timeout_s
        while True:
            try:
                found = self.run(expression)
            except BrowserError:  # the page is still being replaced
                found = None
            if found:
                return found
            if time.monotonic() > until:
                raise BrowserError(f"never true: {expression}; the page said {self.problems}")
            time.sleep(0.05)

    def screenshot(self, path: Path, whole: bool = True) -> None:
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def print(self, path: Path) -> None:
        done = self.ask("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        path.write_bytes(base64.b64decode(done["data"]))
