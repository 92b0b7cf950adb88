"""How the open page looks: in light or dark, with all of it drawn; and the rules of axe-core, which
find what stops people with a screen reader, without a mouse, or with poor sight.

axe-core comes with a package. The page is still meanwhile: a part that htmx replaces would be
looked at after it has gone.
"""

from __future__ import annotations

from importlib.resources import files

from tests.browser.chromium import Browser, View

AXE = files("selenium_axe_python").joinpath("axe-core", "axe.min.js").read_text("utf-8")

BRIGHTNESS = """
    const rgb = getComputedStyle(document.querySelector(arguments[0])).backgroundColor;
    const canvas = document.createElement("canvas").getContext("2d");
    canvas.fillStyle = rgb;
    canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue] = canvas.getImageData(0, 0, 1, 1).data;
    return (red + green + blue) / 3;
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
    return bool(browser.run(BRIGHTNESS, "body") < 128)


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
