"""Debian's Chromium, driven by its own chromedriver: nothing is downloaded for it. How the open
page looks; and the rules of axe-core, which comes with a package and finds what stops people with a
screen reader, without a mouse, or with poor sight.

The page is still meanwhile: a part that htmx replaces would be looked at after it has gone.
"""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.common import exceptions
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

WAIT_S = 90.0
POLL_INTERVAL_S = 0.5
NOT_YET = (exceptions.WebDriverException, LookupError, AttributeError, TypeError, ValueError)
"""Raised by a look at a page that is still being loaded or drawn: its element is missing, hidden or
just replaced, its list is empty, its text is no number yet, or its document was left meanwhile."""
UNTOUCHED = (
    exceptions.ElementClickInterceptedException,
    exceptions.ElementNotInteractableException,
    exceptions.StaleElementReferenceException,
)
"""Raised by a click or a key that nothing has received: it may be repeated."""
PAGE_TIMEOUT_S = 150
ABORTED = ("htmx:sendAbort", "htmx:afterRequest")
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
WIDE = View("wide", 1440, 900)
PHONE = View("phone", 390, 844)
DARK_WIDE = View("wide-dark", 1440, 900, is_dark=True)
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
    driver.set_script_timeout(PAGE_TIMEOUT_S)  # scripts fetch pages, one after the other
    try:
        yield driver
    finally:
        driver.quit()


class Browser:
    """One visitor. ``check`` lists the problems of the page that is open."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self._driver = driver
        self._url = url
        self._host = urlsplit(url).netloc

    def start_anew(self, view: View) -> None:
        self._driver.get("about:blank")
        self._driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
        self.look_as(view)
        self._driver.get_log("browser")
        self._driver.get_log("performance")

    def look_as(self, view: View) -> None:
        """Sets the screen from now on. Scrollbars, which take room on the desktop's Chromium alone,
        would be cut off an image with what stands under them."""
        self._driver.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        size = {"width": view.width, "height": view.height}
        screen = size | {"deviceScaleFactor": 1, "mobile": False}
        self._driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
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
        return str(self.run("return document.body?.innerText ?? ''"))

    def run(self, script: str, *values: Any) -> Any:
        return self._driver.execute_script(script, *values)

    def find(self, css: str) -> WebElement:
        return self._find(By.CSS_SELECTOR, css)

    def _find(self, by: str, what: str) -> WebElement:
        return self.wait(lambda: self._driver.find_elements(by, what), what)[0]

    def wait(
        self,
        is_there: Callable[[], Found],
        what: str,
        not_yet: tuple[type[Exception], ...] = NOT_YET,
    ) -> Found:
        """Returns the first true value. A look that raises one of ``not_yet`` has seen nothing."""
        waiting = WebDriverWait(self._driver, WAIT_S, POLL_INTERVAL_S, not_yet)
        return waiting.until(lambda _: is_there(), what)

    def wait_for_text(self, words: str) -> None:
        self.wait(lambda: words in self.text, repr(words))

    def wait_for_path(self, path: str) -> None:
        self.wait(lambda: self.path == path, path)

    def press(self, *keys: str) -> None:
        """What has the focus gets them, also where htmx has just put another in its place."""
        ActionChains(self._driver).send_keys(*keys).perform()

    def type(self, css: str, *words: str) -> None:
        """Into a field, in place of what stands there."""
        self._act(By.CSS_SELECTOR, css, lambda field: field.clear() or field.send_keys(*words))

    def add(self, css: str, *words: str) -> None:
        """Into a field, after what stands there."""
        self._act(By.CSS_SELECTOR, css, lambda field: field.send_keys(*words))

    def _act(self, by: str, what: str, act: Callable[[WebElement], None]) -> None:
        """Does it to the element, and again to its successor only where nothing has been done: htmx
        has replaced it meanwhile, or it was hidden or covered."""
        self.wait(lambda: act(self._find(by, what)) or True, what, UNTOUCHED)

    def choose(self, css: str, words: str) -> None:
        self.wait(lambda: self.run(CHOOSE, css, words), f"{css} offers {words}")

    def press_button(self, css: str) -> None:
        """Presses the button by the keyboard: nothing that floats above it is in the way."""
        self._act(By.CSS_SELECTOR, css, lambda button: button.send_keys(Keys.ENTER))

    def click(self, css: str) -> None:
        self._act(By.CSS_SELECTOR, css, lambda element: element.click())

    def turn_wheel(self, pixels: int) -> None:
        """The mouse's, over the middle of the window: down where ``pixels`` is positive."""
        middle = ScrollOrigin.from_viewport(*self.run("return [innerWidth >> 1, innerHeight >> 1]"))
        ActionChains(self._driver).scroll_from_origin(middle, 0, pixels).perform()

    def answer(self, *, is_yes: bool) -> str:
        """What the page asks, for which the words are returned."""
        alert = self.wait(lambda: self._driver.switch_to.alert, "the page asks")
        words = str(alert.text)
        alert.accept() if is_yes else alert.dismiss()
        return words

    def follow(self, words: str) -> None:
        self._act(By.LINK_TEXT, words, lambda link: link.send_keys(Keys.ENTER))

    def tab_to(self, element_id: str) -> None:
        focused = "return document.activeElement && document.activeElement.id"
        for _ in range(MAX_TABS):
            if self.run(focused) == element_id:
                return
            self.press(Keys.TAB)
        raise AssertionError(f"the keyboard does not lead to {element_id}")

    def log_in(self, username: str, password: str) -> None:
        self.open("/login/")
        self.type("#id_username", username)
        self.type("#id_password", password, Keys.ENTER)
        self.wait(lambda: self.path != "/login/", "logged in")

    def check(self) -> list[str]:
        """Wider than the screen, errors in the console, requests to other hosts."""
        problems = [self._overflow(), *self._console(), *self._requests_to_other_hosts()]
        return [f"{self.path}: {problem}" for problem in problems if problem]

    def photograph(self, name: str) -> None:
        """The whole page, for people who look at a run."""
        self._take(SCREENSHOTS_DIR / f"{name}.png", captureBeyondViewport=True)

    def photograph_small(self, name: str, directory: Path) -> None:
        """The part seen without scrolling, for a page of documentation."""
        self._take(directory / f"{name}.webp", format="webp", quality=WEBP_QUALITY)

    def _take(self, file: Path, **how: Any) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        image = self._driver.execute_cdp_cmd("Page.captureScreenshot", how)
        file.write_bytes(base64.b64decode(image["data"]))

    def _overflow(self) -> str:
        width, seen = self.run(
            "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        return f"{width} pixels wide on a screen of {seen}" if width > seen else ""

    def _console(self) -> list[str]:
        """A button or a search ends the refresh that is under way, which htmx logs as errors."""
        severe = [one for one in self._driver.get_log("browser") if one["level"] == "SEVERE"]
        messages = [str(entry["message"]) for entry in severe]
        return [one for one in messages if not any(event in one for event in ABORTED)]

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


AXE = files("selenium_axe_python").joinpath("axe-core", "axe.min.js").read_text("utf-8")

IS_DARK = """
    const canvas = document.createElement("canvas").getContext("2d");
    canvas.fillStyle = getComputedStyle(document.body).backgroundColor;
    canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue] = canvas.getImageData(0, 0, 1, 1).data;
    return (red + green + blue) / 3 < 128;
"""
LEFT = "[hx-trigger=load], canvas:not([data-drawn]), #swagger-ui:not(:has(.opblock))"
"""What stands in a page's place until that part is requested or drawn."""
IS_DRAWN = """
    const canvases = [...document.querySelectorAll("canvas")];
    return !document.querySelector(arguments[0])
        && canvases.every((one) => one.clientWidth <= one.parentElement.clientWidth);
"""


def look_at(browser: Browser, view: View) -> None:
    """Shows the open page as in ``view``, once all of it is drawn and its theme is the view's."""
    browser.look_as(view)
    browser.wait(
        lambda: browser.run("return innerWidth") == view.width, f"it is as wide as {view.name}"
    )
    browser.wait(lambda: drawn(browser), f"all of {browser.path} is drawn")
    browser.wait(lambda: is_dark(browser) == view.is_dark, f"it is as {view.name} should be")


def is_dark(browser: Browser) -> bool:
    return bool(browser.run(IS_DARK))


def drawn(browser: Browser) -> bool:
    """The parts that are requested after the page are there, its charts are drawn as wide as they
    should be, and the paths of the fleet's API."""
    return bool(browser.run(IS_DRAWN, LEFT))


MAX_HTML_CHARS = 160
KEEP_STILL = """
    Object.defineProperty(document, "hidden", {value: true, configurable: true});
    const still = document.createElement("style");
    still.id = "still";
    still.textContent = "* { transition: none !important; animation: none !important }";
    document.head.append(still);
"""
"""Pages ask for nothing while they are hidden."""
IS_STILL = "return !document.querySelector('.htmx-request, .htmx-swapping, .htmx-settling')"
MOVE_AGAIN = """
    delete document.hidden;
    document.getElementById("still").remove();
"""
NOT_OURS = "#swagger-ui"
"""Swagger UI's own markup, on one page of operators: it has links within buttons."""
VIOLATIONS = """
    const [notOurs, maxChars] = arguments;
    const found = await axe.run({exclude: [[notOurs]]}, {resultTypes: ["violations"]});
    return found.violations.flatMap((one) => one.nodes.map((node) => {
        const why = one.id === "color-contrast" ? node.any[0].message : one.help;
        return `${one.id}: ${why}: ${node.html.replace(/\\s+/g, " ").slice(0, maxChars)}`;
    }));
"""


def violations(browser: Browser) -> list[str]:
    """One line for each element that breaks a rule, and rule."""
    browser.run(KEEP_STILL)
    browser.wait(lambda: browser.run(IS_STILL), "the page is still")
    if not browser.run("return 'axe' in window"):
        browser.run(AXE)
    found = browser.run(VIOLATIONS, NOT_OURS, MAX_HTML_CHARS)
    browser.run(MOVE_AGAIN)
    return [f"{browser.path}: {one}" for one in found]
