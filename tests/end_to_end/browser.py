"""A headless Chromium driven over its DevTools pipe, without other packages.

    with Browser() as browser:
        page = browser.open("/tmp/r.html", width=1280)
        page.evaluate("document.title")
        page.console, page.requests  # What went wrong, what was asked for.

Browser() raises Missing where no chromium is installed or none starts. Calls
raise RuntimeError with the browser's words, and TimeoutError after `timeout`
seconds. One thread.
"""
import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time


class Missing(Exception):
    """No chromium here."""


class Browser:
    def __init__(self, timeout=120):
        program = next(
            (p for p in map(shutil.which, ("chromium", "chromium-browser",
                                           "google-chrome")) if p), None)
        if program is None:
            raise Missing("no chromium is installed")
        self.timeout = timeout
        self._folder = tempfile.TemporaryDirectory()
        # Above the numbers 3 and 4, under which the browser looks for them.
        its_in, our_out = (_high(fd) for fd in os.pipe())
        our_in, its_out = (_high(fd) for fd in os.pipe())

        def give():
            os.dup2(its_in, 3)
            os.dup2(its_out, 4)

        self._process = subprocess.Popen(
            [program, "--headless", "--no-sandbox", "--disable-gpu",
             "--hide-scrollbars", "--remote-debugging-pipe",
             "--no-first-run", "--disable-background-networking",
             f"--user-data-dir={self._folder.name}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            close_fds=False, preexec_fn=give)
        os.close(its_in)
        os.close(its_out)
        self._in, self._out = our_in, our_out
        self._buffer = b""
        self._next = 0
        self._pages = {}
        try:
            self.call("Browser.getVersion")
        except (EOFError, BrokenPipeError, TimeoutError) as error:
            self.close()
            raise Missing("chromium does not start here") from error

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait()
        for fd in (self._in, self._out):
            os.close(fd)
        try:
            self._folder.cleanup()
        except OSError:
            pass  # A last child of the browser may still be writing there.

    def open(self, path, width=1280, height=900, mobile=False, hash_text=""):
        """The file at `path` in a page of its own, once it has loaded."""
        target = self.call("Target.createTarget", url="about:blank")
        session = self.call("Target.attachToTarget", flatten=True,
                            targetId=target["targetId"])["sessionId"]
        page = Page(self, session, target["targetId"])
        self._pages[session] = page
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(domain + ".enable")
        page.call("Emulation.setDeviceMetricsOverride", width=width,
                  height=height, deviceScaleFactor=1, mobile=mobile)
        if mobile:
            page.call("Emulation.setTouchEmulationEnabled", enabled=True)
        page.url = "file://" + os.path.abspath(path) + hash_text
        page.call("Page.navigate", url=page.url)
        self._read_until(lambda: page.loaded)
        return page

    def call(self, method, session=None, **params):
        self._next += 1
        wanted = self._next
        message = {"id": wanted, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data):]
        answer = self._read_until(lambda: None, wanted)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _read_until(self, done, wanted=None):
        """Handles messages until `done()`, or gives the answer `wanted`."""
        end = time.monotonic() + self.timeout
        while not done():
            cut = self._buffer.find(b"\0")
            if cut < 0:
                left = end - time.monotonic()
                if left <= 0 or not select.select([self._in], [], [], left)[0]:
                    raise TimeoutError("the browser does not answer")
                data = os.read(self._in, 1 << 20)
                if not data:
                    raise EOFError("the browser has ended")
                self._buffer += data
                continue
            message = json.loads(self._buffer[:cut])
            self._buffer = self._buffer[cut + 1:]
            if wanted is not None and message.get("id") == wanted:
                return message
            page = self._pages.get(message.get("sessionId"))
            if page and "method" in message:
                page.handle(message["method"], message["params"])
        return None


class Page:
    def __init__(self, browser, session, target):
        self._browser = browser
        self._session = session
        self._target = target
        self.url = ""
        self.loaded = False
        self.console = []   # Errors and warnings, also of the page's policy.
        self.requests = []  # Addresses other than the page's own.

    def handle(self, method, params):
        if method == "Page.loadEventFired":
            self.loaded = self.url != ""
        elif method == "Runtime.exceptionThrown":
            self.console.append(json.dumps(params["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled":
            if params["type"] in ("error", "warning", "assert"):
                self.console.append(json.dumps(params["args"])[:500])
        elif method == "Log.entryAdded":
            self.console.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if url != self.url.split("#")[0] and url != "about:blank":
                self.requests.append(url[:200])

    def call(self, method, **params):
        return self._browser.call(method, self._session, **params)

    def evaluate(self, text):
        """The value of an expression, awaited if it is a promise."""
        result = self.call("Runtime.evaluate", expression=text,
                           returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(json.dumps(result["exceptionDetails"])[:2000])
        return result["result"].get("value")

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def key(self, key, code=None):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key,
                      code=code or key,
                      windowsVirtualKeyCode=9 if key == "Tab" else 0)

    def screenshot(self, path):
        """Writes a screenshot of the whole page, however long."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"],
                "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", clip=clip,
                         captureBeyondViewport=True)
        with open(path, "wb") as out:
            out.write(base64.b64decode(shot["data"]))

    def close(self):
        self._browser.call("Target.closeTarget", targetId=self._target)


def _high(fd):
    above = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 16)
    os.close(fd)
    return above
