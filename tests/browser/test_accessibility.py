"""No page breaks a rule of axe-core, at 1440 and 390 pixels, in light and in the dark."""

from __future__ import annotations

import pytest

from tests.browser.accessibility import violations
from tests.browser.appearance import look_at
from tests.browser.chromium import DARK_PHONE, DARK_WIDE, PHONE, WIDE, Browser
from tests.browser.pages import Who, pages_of
from tests.browser.seed import PASSWORD
from tests.browser.server import PagesServer

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(1800)]

SPOIL = """
    const part = document.createElement("div");
    part.innerHTML = '<button></button> <p style="color: #999; background: #fff">Faint.</p>';
    document.getElementById("main").append(part);
"""


@pytest.mark.parametrize("who", list(Who), ids=lambda who: who.name.lower())
def test_no_page_breaks_a_rule(browser: Browser, pages_server: PagesServer, who: Who) -> None:
    """Nor is one wider than the screen."""
    browser.start_anew(WIDE)
    if who:
        browser.log_in(who, PASSWORD)
    problems = []
    for _, page in pages_of(who):
        browser.open(page.path_with(pages_server.first_key))
        for view in (WIDE, DARK_WIDE, PHONE, DARK_PHONE):
            look_at(browser, view)
            problems += [f"{view.name} {one}" for one in violations(browser) + browser.check()]
    assert problems == []


def test_a_spoilt_page_breaks_rules(browser: Browser) -> None:
    browser.open("/docs")
    assert violations(browser) == []
    browser.run(SPOIL)
    rules = [one.split(": ")[1] for one in violations(browser)]
    assert sorted(rules) == ["button-name", "color-contrast"]
