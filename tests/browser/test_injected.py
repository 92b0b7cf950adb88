"""The Content-Security-Policy stops what is injected into a page of ours. That the pages themselves
break no rule of it, ``test_pages.py`` sees: a violation is an error in the console. Pages of other
origins are refused in ``tests/inference/gateway/server/test_paths.py``."""

from __future__ import annotations

import pytest

from tests.browser.chromium import Browser
from tests.browser.seed import OPERATOR, PASSWORD

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(600)]

INJECTED = """
    const script = document.createElement("script");
    script.textContent = "window.wasRun = true";
    const image = document.createElement("div");
    image.innerHTML = '<img src="/nowhere.png" onerror="window.wasRun = true">';
    const frame = document.createElement("iframe");
    frame.src = arguments[0];
    document.body.append(script, image, frame);
    return fetch(arguments[0], {mode: "no-cors"}).then(() => "sent", () => "stopped");
"""
ATTEMPTS = ("inline script", "inline event handler", "connect-src", "frame-src")
ELSEWHERE = "http://127.0.0.1:9/"


@pytest.mark.parametrize("path", ["/admin/", "/playground/"])
def test_what_is_injected_does_not_run(browser: Browser, path: str) -> None:
    """The admin's pages and the playground have policies of their own."""
    browser.log_in(OPERATOR, PASSWORD)
    browser.open(path)
    assert browser.run(INJECTED, ELSEWHERE) == "stopped"
    stopped: list[str] = []

    def are_all_stopped() -> bool:
        stopped.extend(one for one in browser.check() if "Content Security Policy" in one)
        return all(any(what in line for line in stopped) for what in ATTEMPTS)

    browser.wait(are_all_stopped, "each attempt is in the console")
    assert browser.run("return window.wasRun === undefined")
