"""The dashboard in a browser: its length in a large fleet, what stays in place, what asks first."""

from __future__ import annotations

import pytest
from selenium.webdriver.common.keys import Keys

from tests.browser.chromium import WIDE, Browser
from tests.browser.large_fleet import large_fleet
from tests.browser.seed import OPERATOR, PASSWORD
from tests.browser.server import PagesServer

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(600)]

MAX_HEIGHT_PX = 2500
MAX_REFRESH_BYTES = 40_000
REFRESH_BYTES = """
    const asked = performance.getEntriesByType("resource");
    return asked.filter((one) => one.name.includes("/admin/dashboard/board"))
        .filter((one) => one.responseStatus === 200 && one.decodedBodySize)
        .map((one) => [one.decodedBodySize, one.transferSize]);
"""
HEIGHT = "return document.documentElement.scrollHeight"
TOP_OF = "return document.querySelector(arguments[0]).getBoundingClientRect().top + scrollY"
"""A script that returns the sizes of the board's answers. A button ends the refresh under way: that
has no answer."""
COUNT_REFRESHES = """
    window.refreshes = 0;
    document.getElementById("board").addEventListener("htmx:afterSwap", (event) => {
        if (event.target === event.currentTarget) window.refreshes += 1;
    });
"""

PRESS_ONCE_REFRESHED = """
    document.body.addEventListener("htmx:afterSwap", () => {
        setTimeout(() => document.querySelector(arguments[0]).click(), 0);
    }, {once: true});
"""


def refreshed(browser: Browser, times: int = 1) -> None:
    before = browser.run("return window.refreshes")
    browser.wait(lambda: browser.run("return window.refreshes") >= before + times, "refreshed")


def test_a_large_fleet_is_one_page_long(browser: Browser, pages_server: PagesServer) -> None:
    browser.start_anew(WIDE)
    browser.log_in(OPERATOR, PASSWORD)
    with large_fleet(pages_server):
        num_models = pages_server.count("fleet_cataloguemodel")
        browser.open("/admin/")
        browser.wait_for_text("51 neurons that are away")
        assert browser.run(HEIGHT) <= MAX_HEIGHT_PX
        browser.run(COUNT_REFRESHES)
        # A search stays while the board is asked for again, and leads to an address of its own.
        browser.add("#search-models", "model-19")
        browser.wait(lambda: "model-0" not in browser.text and "model-190" in browser.text, "found")
        refreshed(browser, times=2)
        assert browser.run("return document.activeElement.id") == "search-models"
        assert browser.run("return document.activeElement.value") == "model-19"
        assert "models=model-19" in browser.run("return location.search")
        assert "model-100" not in browser.text
        browser.add("#search-models", *[Keys.BACKSPACE] * 8)
        browser.wait_for_text(f"1 to 12 of {num_models}")
        browser.press_button("#models-next")
        browser.wait_for_text(f"13 to 24 of {num_models}")
        refreshed(browser)
        assert f"13 to 24 of {num_models}" in browser.text
        assert browser.run(HEIGHT) <= MAX_HEIGHT_PX
        refreshes = browser.run(REFRESH_BYTES)
        assert len(refreshes) >= 3
        assert all(size <= MAX_REFRESH_BYTES for size, _ in refreshes)
        assert all(sent < size / 2 for size, sent in refreshes), "they are compressed"
        assert browser.check() == []


def test_a_job_moves_no_button_and_an_unload_asks(
    browser: Browser, pages_server: PagesServer
) -> None:
    browser.start_anew(WIDE)
    browser.log_in(OPERATOR, PASSWORD)
    browser.open("/admin/")
    browser.run(COUNT_REFRESHES)
    before = [browser.run(TOP_OF, css) for css in ("#load-big", "#unload-tiny", "#drain-beast")]
    pages_server.write(
        "UPDATE fleet_loadjob SET model_name = 'big', status = 'running', stage = 'weights',"
        " progress_done = 1, progress_total = 4, finished_at = NULL WHERE status = 'succeeded'"
    )
    browser.wait_for_text("load on beast: weights 25%")
    after = [browser.run(TOP_OF, css) for css in ("#load-big", "#unload-tiny", "#drain-beast")]
    pages_server.write(
        "UPDATE fleet_loadjob SET model_name = 'tiny', status = 'succeeded',"
        " finished_at = datetime('now', '-1 hour') WHERE status = 'running'"
    )
    assert after == before
    browser.press_button("#unload-tiny")
    assert browser.dismiss() == "Unload tiny?"
    refreshed(browser)
    assert "Unloading" not in browser.text
    # Folded and unfolded again, by the keyboard.
    browser.press_button("#fold-beast")
    browser.wait(lambda: "cuda:0" not in browser.text, "folded")
    refreshed(browser)
    assert "cuda:0" not in browser.text
    assert browser.run("return document.activeElement.id") == "fold-beast"
    browser.press(Keys.ENTER)
    browser.wait_for_text("cuda:0")
    assert browser.check() == []


def test_a_button_pressed_right_after_a_refresh_loads_no_page(
    browser: Browser, pages_server: PagesServer
) -> None:
    browser.start_anew(WIDE)
    browser.log_in(OPERATOR, PASSWORD)
    browser.open("/admin/")
    browser.run(COUNT_REFRESHES)
    browser.run(PRESS_ONCE_REFRESHED, "#fold-beast")
    browser.wait(lambda: "cuda:0" not in browser.text, "folded")
    assert browser.run("return window.refreshes ?? 0"), "the page has not been loaded anew"
    browser.press_button("#fold-beast")
    browser.wait_for_text("cuda:0")


def test_a_model_is_pinned_on_its_page(browser: Browser, pages_server: PagesServer) -> None:
    browser.start_anew(WIDE)
    browser.log_in(OPERATOR, PASSWORD)
    browser.open("/admin/dashboard/model?name=big")
    browser.press_button("#pin-big")
    browser.wait(lambda: browser.run("return id_pinned.checked"), "the form shows it as well")
    browser.wait_for_text("big is kept loaded")
    browser.press_button("#pin-big")
    browser.wait(lambda: not browser.run("return id_pinned.checked"), "unpinned")
    assert browser.check() == []
