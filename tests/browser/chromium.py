"""Debian's Chromium, driven by its own chromedriver. Nothing is downloaded for it."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

WAIT_S = 90.0
PAGE_TIMEOUT_S = 150
MAX_TABS = 400
WEBP_QUALITY = 80
CHOOSE = """
    const field = document.querySelector(arguments[0]);
    const found = [...field.options].find(
        (option) => option.value === arguments[1] || option.text === arguments[1]
    );
    if (!found) return false;
    field.value = found.value;
    field.dispatchEvent(new Event("change", {bubbles: true}));
    return true;
"""
ASK_FOR_SCHEME = """
    if (!window.Alpine) return;
    const page = Alpine.$data(document.documentElement);
    if (page.adminTheme !== "auto") return;
    page.adminTheme = "light";
    page.adminTheme = "auto";
"""
"""A page asks the system once for light or dark: this makes it ask again, without being loaded."""
SCREENSHOTS_DIR = Path(__file__).resolve().parent.parent.parent / "var" / "screenshots"
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # containers of CI run as root
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-breakpad",
    "--disable-background-networking",
    "--no-first-run",
    "--no-proxy-server",
)
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class View:
    name: str
    width: int
    height: int
    is_dark: bool = False


DESKTOP = View("desktop", 1280, 900)
PHONE = View("phone", 390, 844)
DARK_DESKTOP = View("desktop-dark", 1280, 900, is_dark=True)
DARK_PHONE = View("phone-dark", 390, 844, is_dark=True)


def is_installed() -> bool:
    return bool(shutil.which("chromium") and shutil.which("chromedriver"))


@contextmanager
def running_chromium(profile_dir: Path) -> Iterator[webdriver.Chrome]:
    options = Options()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS, f"--user-data-dir={profile_dir}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = Service(executable_path=shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    driver.set_page_load_timeout(PAGE_TIMEOUT_S)
    try:
        yield driver
    finally:
        driver.quit()


class Browser:
    """One visitor. ``check`` says what is wrong with the page that is open."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self._driver = driver
        self._url = url
        self._host = urlsplit(url).netloc

    def start_anew(self, view: View) -> None:
        """Nobody is logged in, nothing is logged."""
        self._driver.get("about:blank")
        self._driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
        self.look_as(view)
        self._driver.get_log("browser")
        self._driver.get_log("performance")

    def look_as(self, view: View) -> None:
        """From now on, on a screen like that. Scrollbars, which take room on the desktop's Chromium
        alone, would be cut off a picture with what stands under them."""
        self._driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        self._driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {
                "width": view.width,
                "height": view.height,
                "deviceScaleFactor": 1,
                "mobile": False,
            },
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if view.is_dark else "light"}
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.run(ASK_FOR_SCHEME)

    def open(self, path: str) -> None:
        self._driver.get(self._url + path)

    @property
    def path(self) -> str:
        return urlsplit(self._driver.current_url).path

    @property
    def text(self) -> str:
        return str(self.run("return document.body.innerText"))

    def run(self, script: str, *values: Any) -> Any:
        return self._driver.execute_script(script, *values)

    def find(self, css: str) -> WebElement:
        return self.wait(lambda: self._driver.find_elements(By.CSS_SELECTOR, css), css)[0]

    def wait(self, is_there: Callable[[], Found], what: str) -> Found:
        """The first true value; a part of the page that htmx has just replaced counts as not
        yet."""
        waiting = WebDriverWait(
            self._driver, WAIT_S, ignored_exceptions=[StaleElementReferenceException]
        )
        return waiting.until(lambda _: is_there(), message=f"{what}, at {self.path}")

    def wait_for_text(self, words: str) -> None:
        self.wait(lambda: words in self.text, repr(words))

    def wait_for_path(self, path: str) -> None:
        self.wait(lambda: self.path == path, path)

    def press(self, *keys: str) -> None:
        """What has the focus gets them, also where htmx has just put another in its place."""
        ActionChains(self._driver).send_keys(*keys).perform()

    def type(self, css: str, *words: str) -> None:
        """Into a field, in place of what stands there."""
        field = self.find(css)
        field.clear()
        field.send_keys(*words)

    def choose(self, css: str, words: str) -> None:
        """What a select offers by that value or label."""
        self.find(css)
        is_chosen = self.run(CHOOSE, css, words)
        assert is_chosen, f"{css} at {self.path} does not offer {words}"

    def press_button(self, css: str) -> None:
        """By the keyboard: nothing that floats above it is in the way."""
        self.find(css).send_keys(Keys.ENTER)

    def follow(self, words: str) -> None:
        """The link that says so."""
        links = self.wait(lambda: self._driver.find_elements(By.LINK_TEXT, words), words)
        links[0].send_keys(Keys.ENTER)

    def tab_to(self, element_id: str) -> None:
        """By the keyboard alone."""
        focused = "return document.activeElement && document.activeElement.id"
        for _ in range(MAX_TABS):
            if self.run(focused) == element_id:
                return
            self.press(Keys.TAB)
        raise AssertionError(f"the keyboard does not lead to {element_id}")

    def log_in(self, username: str, password: str) -> None:
        self.open("/login/")
        self.find("#id_username").send_keys(username)
        self.find("#id_password").send_keys(password, Keys.ENTER)
        self.wait(lambda: self.path != "/login/", "logged in")

    def check(self) -> list[str]:
        """Wider than the screen, errors in the console, requests to other hosts."""
        problems = [self._overflow(), *self._console(), *self._requests_to_other_hosts()]
        return [f"{self.path}: {problem}" for problem in problems if problem]

    def photograph(self, name: str) -> None:
        """The whole page, for people who look at a run."""
        self._take(f"{name}.png", captureBeyondViewport=True)

    def photograph_small(self, name: str) -> None:
        """What is seen without scrolling, for a page of documentation."""
        self._take(f"{name}.webp", format="webp", quality=WEBP_QUALITY)

    def _take(self, file_name: str, **how: Any) -> None:
        SCREENSHOTS_DIR.mkdir(parents=True, exist_ok=True)
        image = self._driver.execute_cdp_cmd("Page.captureScreenshot", how)
        (SCREENSHOTS_DIR / file_name).write_bytes(base64.b64decode(image["data"]))

    def _overflow(self) -> str:
        width, seen = self.run(
            "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        return f"{width} pixels wide on a screen of {seen}" if width > seen else ""

    def _console(self) -> list[str]:
        entries = self._driver.get_log("browser")
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]

    def _requests_to_other_hosts(self) -> list[str]:
        found = []
        for entry in self._driver.get_log("performance"):
            event = json.loads(entry["message"])["message"]
            if event["method"] != "Network.requestWillBeSent":
                continue
            address = urlsplit(event["params"]["request"]["url"])
            if address.scheme in ("http", "https", "ws", "wss") and address.netloc != self._host:
                found.append(f"asks {address.netloc}")
        return found
