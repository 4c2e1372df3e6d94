"""A headless Chromium, driven over its debugging pipe; `find_browser` is None where there is none."""

import fcntl
import itertools
import json
import os
import shutil
import subprocess
import time

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking", "--disable-component-update", "--disable-extensions", "--hide-scrollbars",
    "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE_S = 120


def find_browser():
    """The path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A browser with one page at a time; what it logs and requests is kept."""

    def __init__(self, program, profile):
        commands, self._commands = self._pipe()
        self._answers, answers = self._pipe()
        line = [
            "bash",
            "-c",
            f'exec "$@" 3<&{commands} 4>&{answers}',
            "bash",
            program,
            *FLAGS,
            f"--user-data-dir={profile}",
        ]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(line, pass_fds=(commands, answers), **quiet)
        os.close(commands)
        os.close(answers)
        self._numbers, self._rest, self._session = itertools.count(1), b"", None
        self.events = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    @staticmethod
    def _pipe():
        """A pipe whose ends have high numbers, so that they do not stand where the browser wants them."""
        low = os.pipe()
        high = tuple(fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 50) for one in low)
        for one in low:
            os.close(one)
        return high

    def close(self):
        """End the browser."""
        os.close(self._commands)
        os.close(self._answers)
        self._process.terminate()
        self._process.wait(30)

    def _message(self):
        until = time.monotonic() + PATIENCE_S
        while b"\0" not in self._rest:
            part = os.read(self._answers, 1 << 20)
            assert part, "the browser ended"
            assert time.monotonic() < until, "the browser does not answer"
            self._rest += part
        one, _, self._rest = self._rest.partition(b"\0")
        return json.loads(one)

    def send(self, method, **params):
        """Send a command, and return its answer."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while (answer := self._message()).get("id") != number:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, path, width=1200, height=900, dark=False):
        """Open a file in a window of a size, and wait until it is loaded."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.send("Page.navigate", url=path.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._message())

    def evaluate(self, expression):
        """Return the value of an expression of JavaScript."""
        found = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, key, code, text=""):
        """Press a key and let it go."""
        known = {"key": key, "code": key, "windowsVirtualKeyCode": code, "text": text}
        self.send("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **known)
        self.send("Input.dispatchKeyEvent", type="keyUp", **known)

    def click(self, at):
        """Click in the middle of what an expression of JavaScript is."""
        box = self.evaluate(
            f"(() => {{ const one = {at}; one.scrollIntoView({{block: 'center', behavior: 'instant'}}); "
            "const box = one.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2] })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def complaints(self):
        """What was logged as a warning or an error, or thrown."""
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        found = []
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(params["exceptionDetails"])
            elif method == "Runtime.consoleAPICalled" and params["type"] in {"error", "warning", "assert"}:
                found.append([one.get("value", one.get("description")) for one in params["args"]])
            elif method == "Log.entryAdded" and params["entry"]["level"] in {"error", "warning"}:
                found.append(params["entry"]["text"])
        return found

    def requests(self):
        """What was asked for beside the page itself and what it holds."""
        asked = [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]
        return [url for url in asked[1:] if not url.startswith("data:")]
