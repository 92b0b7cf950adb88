"""The Content-Security-Policy in Chromium: it stops what it should, and no page of ours.

That the pages themselves break no rule of it, ``test_pages.py`` sees: a violation is an error in
the console. Here are the pages without a row in the page table, and the attempts to be stopped.
"""

from __future__ import annotations

import pytest

from tests.browser.chromium import DESKTOP, Browser
from tests.browser.seed import OPERATOR, PASSWORD

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(600)]

INLINE = """
    const script = document.createElement("script");
    script.textContent = "window.wasRun = true";
    document.body.append(script);
    const image = document.createElement("div");
    image.innerHTML = '<img src="/nowhere.png" onerror="window.wasRun = true">';
    document.body.append(image);
    return null;
"""
FETCHED = """
    const done = arguments[arguments.length - 1];
    return fetch(arguments[0], {mode: "no-cors"}).then(() => "sent", () => "stopped");
"""
FRAMED = """
    const frame = document.createElement("iframe");
    frame.src = arguments[0];
    document.body.append(frame);
    return null;
"""
ATTEMPTS = ("inline script", "inline event handler", "connect-src", "frame-src")
ELSEWHERE = "http://127.0.0.1:9/"


def test_the_documents_of_the_api_are_drawn(browser: Browser) -> None:
    browser.start_anew(DESKTOP)
    browser.log_in(OPERATOR, PASSWORD)
    browser.open("/api/docs")
    browser.find("#swagger-ui .opblock")
    assert browser.check() == []


@pytest.mark.parametrize("path", ["/login/", "/admin/", "/playground/"])
def test_what_is_injected_does_not_run(browser: Browser, path: str) -> None:
    browser.start_anew(DESKTOP)
    if path != "/login/":
        browser.log_in(OPERATOR, PASSWORD)
    browser.open(path)
    assert browser.check() == []
    browser.run(INLINE)
    assert browser.run(FETCHED, ELSEWHERE) == "stopped"
    browser.run(FRAMED, ELSEWHERE)
    stopped: list[str] = []

    def are_all_stopped() -> bool:
        stopped.extend(violations(browser))
        return all(any(what in line for line in stopped) for what in ATTEMPTS)

    browser.wait(are_all_stopped, "each attempt is in the console")
    assert browser.run("return window.wasRun === undefined")


def violations(browser: Browser) -> list[str]:
    """Those that the console has had since it was last read."""
    return [line for line in browser.check() if "Content Security Policy" in line]
