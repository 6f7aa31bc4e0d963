"""A headless Chromium driven over a pipe (DevTools protocol), with the standard library alone."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time


class Browser:
    """One page. Collects what the page complains about and what it asks the network for."""

    def __init__(self):
        self.profile = tempfile.mkdtemp()
        to_child, self.write_fd = os.pipe()
        self.read_fd, from_child = os.pipe()
        # The protocol speaks on descriptors 3 and 4; ours may have these numbers, so they are moved out of the way first.
        high_in, high_out = os.dup2(to_child, 60), os.dup2(from_child, 61)
        self.process = subprocess.Popen(
            ["sh", "-c", 'exec "$@" 3</dev/fd/60 4>/dev/fd/61', "sh", "chromium", "--headless", "--no-sandbox", "--disable-gpu",
             "--hide-scrollbars", "--no-first-run", "--remote-debugging-pipe", "--user-data-dir=" + self.profile, "about:blank"],
            pass_fds=(high_in, high_out), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for fd in (to_child, from_child, high_in, high_out):
            os.close(fd)
        self.buffer = b""
        self.next_id = 0
        self.session = None
        self.complaints = []
        self.requests = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def close(self):
        self.process.terminate()
        self.process.wait(30)
        shutil.rmtree(self.profile, ignore_errors=True)

    def read_message(self):
        while b"\0" not in self.buffer:
            part = os.read(self.read_fd, 1 << 16)
            if not part:
                raise RuntimeError("the browser is gone")
            self.buffer += part
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def note(self, message):
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"].get("exception", {}).get("description")))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append("console: " + str([a.get("value") for a in params["args"]]))
        elif method == "Log.entryAdded":
            self.complaints.append("log: " + params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def call(self, method, **params):
        self.next_id += 1
        message = {"id": self.next_id, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_fd, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read_message()
            if answer.get("id") != self.next_id:
                self.note(answer)
                continue
            if "error" in answer:
                raise RuntimeError(method + ": " + answer["error"]["message"])
            return answer["result"]

    def view(self, width, height, dark, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def open(self, path):
        self.visit("file://" + os.path.abspath(path))

    def visit(self, url):
        self.call("Page.navigate", url=url)
        until = time.time() + 60
        while self.run("document.readyState") != "complete" and time.time() < until:
            time.sleep(0.05)
        self.settle()

    def settle(self):
        """Two frames: what was asked for is drawn."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def run(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(expression + ": " + json.dumps(result["exceptionDetails"])[:400])
        return result["result"].get("value")

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)
        self.settle()

    def screenshot(self, path, selector=None):
        """The visible part, the element a selector finds, or (selector "page") everything."""
        clip = {}
        if selector:
            box = self.run("(() => { const e = %s, b = e.getBoundingClientRect();"
                           " return {x: b.x + scrollX, y: b.y + scrollY, width: b.width, height: b.height}; })()"
                           % ("document.documentElement" if selector == "page" else "document.querySelector(%s)" % json.dumps(selector)))
            clip = {"clip": dict(box, scale=1), "captureBeyondViewport": True}
        data = self.call("Page.captureScreenshot", format="png", **clip)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))
