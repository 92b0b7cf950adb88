"""The rules of axe-core on the page that is open: what stops people with a screen reader or without
a mouse.

axe-core comes with a package. The page is still meanwhile: a part that htmx replaces would be
looked at after it has gone.
"""

from __future__ import annotations

from importlib.resources import files

from tests.browser.chromium import Browser

AXE = files("selenium_axe_python").joinpath("axe-core", "axe.min.js").read_text("utf-8")
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
