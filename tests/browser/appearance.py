"""How the open page looks: in light or dark, and with all of it drawn."""

from __future__ import annotations

from tests.browser.chromium import Browser, View

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
