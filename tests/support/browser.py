"""A headless Chromium, driven over the WebDriver protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tests.support.processes import free_port

T = TypeVar("T")

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key of an element's id, by the W3C
_KEYS = {"Escape": "\ue00c", "Tab": "\ue004", "Control": "\ue009", "Enter": "\ue007"}
_KEYS |= {"ArrowLeft": "\ue012", "ArrowRight": "\ue014", "Home": "\ue011", "End": "\ue010"}
_SWITCHES = (
    *("--headless", "--disable-gpu", "--no-first-run", "--disable-quic", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--force-color-profile=srgb"),
    "--window-size=1300,1100",  # a trace counts a frame that changes nothing within it as dropped
)


def until(question: Callable[[], T], seconds: float = 20.0) -> T:
    """Ask until the answer is true, and return it."""
    end = time.monotonic() + seconds
    while not (answer := question()):
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.02)
    return answer


class Browser:
    """One window. Elements are named by CSS selectors."""

    def __init__(self, driver: str, options: dict[str, Any]) -> None:
        self._http = httpx.Client(base_url=driver, timeout=60.0, trust_env=False)
        until(self._driver_is_ready)
        always = {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        created = self._ask("POST", "/session", capabilities={"alwaysMatch": always})
        self._session = f"/session/{created['sessionId']}"

    def _driver_is_ready(self) -> bool:
        try:
            return bool(self._ask("GET", "/status")["ready"])
        except httpx.TransportError:
            return False

    def _ask(self, method: str, path: str, **body: Any) -> Any:
        answer = self._http.request(method, path, json=body if method == "POST" else None)
        value = answer.json()["value"]
        assert answer.is_success, f"{path}: {value['error']}: {value['message']}"
        return value

    def _post(self, path: str, **body: Any) -> Any:
        return self._ask("POST", self._session + path, **body)

    def close(self) -> None:
        """End the session; the browser goes with it."""
        self._ask("DELETE", self._session)
        self._http.close()

    def open(self, url: str) -> None:
        """Load a page."""
        self._post("/url", url=url)

    def resize(self, width: int, height: int) -> None:
        """Give the page a size in CSS pixels, smaller ones than a window can have included."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", **size)

    def prefer(self, **features: str) -> None:
        """Emulate media features; underscores stand for hyphens."""
        named = [{"name": k.replace("_", "-"), "value": v} for k, v in features.items()]
        self.devtools("Emulation.setEmulatedMedia", features=named)

    def devtools(self, command: str, **parameters: Any) -> Any:
        """Give a command of the DevTools protocol."""
        return self._post("/goog/cdp/execute", cmd=command, params=parameters)

    def run(self, script: str, *arguments: Any) -> Any:
        """Run the body of a function in the page and return what it returns."""
        return self._post("/execute/sync", script=script, args=arguments)

    def wait_for(self, script: str, *arguments: Any) -> Any:
        """Run the body of a function and return what it gives to its last argument, a function."""
        return self._post("/execute/async", script=script, args=arguments)

    def element(self, selector: str) -> str:
        """Return the id of the first match."""
        found = self._post("/element", **{"using": "css selector", "value": selector})
        return str(found[_ELEMENT])

    def text(self, selector: str) -> str:
        """Return the text content of the first match."""
        return str(self.run("return document.querySelector(arguments[0]).textContent", selector))

    def texts(self, selector: str) -> list[str]:
        """Return the text content of every match."""
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
        return [str(text) for text in self.run(script, selector)]

    def count(self, selector: str) -> int:
        """Return the number of matches."""
        return int(self.run("return document.querySelectorAll(arguments[0]).length", selector))

    def style(self, selector: str, name: str) -> str:
        """Return a computed style of the first match."""
        script = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
        return str(self.run(script, selector, name))

    def shown(self, selector: str) -> bool:
        """Say whether the first match is displayed."""
        return bool(
            self.run("return document.querySelector(arguments[0]).checkVisibility()", selector)
        )

    def label(self, selector: str) -> str:
        """Return the accessible name, as assistive technology computes it."""
        path = f"{self._session}/element/{self.element(selector)}/computedlabel"
        return str(self._ask("GET", path))

    def click(self, selector: str) -> None:
        """Click on the first match."""
        self._post(f"/element/{self.element(selector)}/click")

    def fill(self, selector: str, text: str) -> None:
        """Type into a field in place of what it holds."""
        element = self.element(selector)
        self._post(f"/element/{element}/clear")
        self._post(f"/element/{element}/value", text=text)

    def attach(self, selector: str, file: Path) -> None:
        """Choose a file in a field for files."""
        self._post(f"/element/{self.element(selector)}/value", text=str(file))

    def choose(self, selector: str, option: str) -> None:
        """Choose an option of a list by its value."""
        self.click(f'{selector} option[value="{option}"]')

    def hover(self, selector: str) -> None:
        """Move the pointer over the first match."""
        place = {"origin": {_ELEMENT: self.element(selector)}, "x": 0, "y": 0}
        self._act("pointer", {"type": "pointerMove", "duration": 0, **place})

    def press(self, *names: str) -> None:
        """Press keys together, as in `press("Control", "Enter")`."""
        keys = [_KEYS.get(name, name) for name in names]
        down = [{"type": "keyDown", "value": key} for key in keys]
        up = [{"type": "keyUp", "value": key} for key in reversed(keys)]
        self._act("key", *down, *up)

    def _act(self, kind: str, *actions: dict[str, Any]) -> None:
        self._post("/actions", actions=[{"type": kind, "id": kind, "actions": actions}])

    def complaints(self) -> list[str]:
        """Return what the console says since the last time; warnings too."""
        entries = self._post("/se/log", type="browser")
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]

    def requested(self) -> list[str]:
        """Return the address of every request since the last time."""
        messages = (json.loads(e["message"]) for e in self._post("/se/log", type="performance"))
        events = (message["message"] for message in messages)
        sent = (e["params"] for e in events if e["method"] == "Network.requestWillBeSent")
        return [str(event["request"]["url"]) for event in sent]

    def screenshot(self) -> bytes:
        """Return the whole page as PNG."""
        size = self.run("return [innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
        told = self.devtools("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(told["data"])


@contextmanager
def chromium(**options: Any) -> Iterator[Browser]:
    """Run a Chromium with an empty profile. Needs Debian's chromium and chromium-driver.

    `options` are further ones of `goog:chromeOptions`, such as `prefs` of the profile.
    """
    driver, binary = (shutil.which(name) for name in ("chromedriver", "chromium"))
    if not driver or not binary:
        raise FileNotFoundError("no Chromium (Debian: apt-get install chromium chromium-driver)")
    port = free_port()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        switches = [*_SWITCHES, f"--user-data-dir={profile}"]
        if os.geteuid() == 0:
            switches.append("--no-sandbox")  # Chromium refuses to be root in its own sandbox
        process = subprocess.Popen(
            [driver, f"--port={port}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            options |= {"binary": binary, "args": switches}
            browser = Browser(f"http://127.0.0.1:{port}", options)
            try:
                yield browser
            finally:
                browser.close()
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def opened(browser: Browser, url: str) -> Iterator[None]:
    """Open a page; at the end nothing was complained about and nobody else was asked."""
    browser.resize(1100, 800)
    browser.prefer(prefers_color_scheme="light", prefers_reduced_motion="reduce")
    browser.open("about:blank")  # the page of the last test asks for its status until it is left
    browser.complaints(), browser.requested()
    browser.open(url)
    yield
    assert browser.complaints() == []
    strange = [each for each in browser.requested() if not each.startswith((url, "data:"))]
    assert strange == []
