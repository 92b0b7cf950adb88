"""Pages that are asked for again and again, in a browser: what stays in place, what asks first, and
that no refresh undoes what an operator has begun."""

from __future__ import annotations

import pytest
from selenium.webdriver.common.keys import Keys

from inference.request_ids import new_request_id
from tests.browser.chromium import WIDE, Browser
from tests.browser.pages import PASSWORD, Who
from tests.browser.server import PagesServer

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(600)]

LOADS = "return [...document.querySelectorAll('[id^=load-], [id^=unload-]')].map((one) => one.id)"
TOP_OF = "return document.querySelector(arguments[0]).getBoundingClientRect().top + scrollY"
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
ROW = "input.action-select"
TICK_ONCE_REQUESTED = """
    window.answers = 0;
    const row = arguments[0];
    document.body.addEventListener("htmx:beforeSend", () => {
        document.querySelector(row).click();
    }, {once: true});
    document.body.addEventListener("htmx:afterRequest", () => { window.answers += 1; });
"""
ANSWERS = "return window.answers"
IS_TICKED = "return document.querySelector(arguments[0]).checked"
COUNT_DUE_ONCE_POSTED = """
    document.body.addEventListener("htmx:beforeSend", (event) => {
        if (event.detail.requestConfig.verb === "post") window.numDue = 0;
    });
    document.body.addEventListener("htmx:confirm", (event) => {
        if (event.detail.verb === "get" && event.detail.elt.closest("#model-home")) numDue += 1;
    });
"""
"""A script that counts the refreshes that are due after a button's request: htmx asks whether each
is confirmed, before it looks what else is under way."""
COPIED = "metering_requestrecord"


def refreshed(browser: Browser, times: int = 1) -> None:
    before = browser.run("return window.refreshes")
    browser.wait(lambda: browser.run("return window.refreshes") >= before + times, "refreshed")


def test_no_refresh_undoes_what_is_begun(browser: Browser, pages_server: PagesServer) -> None:
    """A job moves no button, an unload asks, a button pressed right after a refresh loads no page,
    and a search, which leads to an address of its own, stays."""
    browser.start_anew(WIDE)
    browser.log_in(Who.OPERATOR, PASSWORD)
    browser.open("/admin/")
    browser.run(COUNT_REFRESHES)
    tops = [(TOP_OF, css) for css in ("#load-big", "#unload-tiny", "#drain-beast")]
    before = [browser.run(*top) for top in tops]
    pages_server.write(
        "UPDATE fleet_loadjob SET model_name = 'big', status = 'running', stage = 'weights',"
        " progress_done = 1, progress_total = 4, finished_at = NULL WHERE status = 'succeeded'"
    )
    browser.wait_for_text("load on beast: weights 25%")
    after = [browser.run(*top) for top in tops]
    pages_server.write(
        "UPDATE fleet_loadjob SET model_name = 'tiny', status = 'succeeded',"
        " finished_at = datetime('now', '-1 hour') WHERE status = 'running'"
    )
    assert after == before
    browser.press_button("#unload-tiny")
    assert browser.answer(is_yes=False) == "Unload tiny?"
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
    browser.run(PRESS_ONCE_REFRESHED, "#fold-beast")
    browser.wait(lambda: "cuda:0" not in browser.text, "folded")
    assert browser.run("return window.refreshes ?? 0"), "the page has not been loaded anew"
    browser.press_button("#fold-beast")
    browser.wait_for_text("cuda:0")
    browser.add("#search-models", "big")
    browser.wait(lambda: "unload-tiny" not in browser.run(LOADS), "found")
    refreshed(browser, times=2)
    assert browser.run("return document.activeElement.id") == "search-models"
    assert browser.run("return document.activeElement.value") == "big"
    assert "models=big" in browser.run("return location.search")
    assert "load-big" in browser.run(LOADS) and "unload-tiny" not in browser.run(LOADS)
    assert browser.check() == []


def test_a_row_ticked_while_the_list_is_requested_stays_ticked(browser: Browser) -> None:
    browser.log_in(Who.OPERATOR, PASSWORD)
    browser.open("/admin/fleet/neuron/")
    browser.run(TICK_ONCE_REQUESTED, ROW)
    browser.wait(lambda: browser.run(ANSWERS) >= 1, "the list was answered")
    assert browser.run(IS_TICKED, ROW)
    # Unticked, the list is refreshed again.
    browser.run("document.querySelector(arguments[0]).click(); window.answers = 0", ROW)
    browser.wait(lambda: browser.run(ANSWERS) >= 1, "the list was refreshed")
    assert not browser.run(IS_TICKED, ROW)
    assert browser.check() == []


def test_a_button_outlasts_the_refreshes(browser: Browser, pages_server: PagesServer) -> None:
    """The server answers the button after another refresh was due."""
    browser.log_in(Who.OPERATOR, PASSWORD)
    browser.open("/admin/dashboard/model?name=big")
    browser.find("#pin-big")
    browser.run(COUNT_DUE_ONCE_POSTED)
    with pages_server.paused():
        browser.press_button("#pin-big")
        browser.wait(lambda: (browser.run("return window.numDue") or 0) >= 2, "refreshes are due")
    browser.wait_for_text("big is kept loaded")
    browser.wait(lambda: browser.run("return id_pinned.checked"), "the form shows it as well")
    browser.press_button("#pin-big")
    browser.wait_for_text("big is loaded when it is requested")
    assert browser.check() == []


def end_a_request(server: PagesServer) -> str:
    """A copy of the newest one that ends now. Returns its id."""
    request_id = new_request_id()
    own = {"request_id": f"'{request_id}'", "at": "datetime('now')", "model_asked": "'just-now'"}
    found = server.write(f"PRAGMA table_info({COPIED})")
    columns = [column for _, column, *_ in found if column != "id"]
    values = ", ".join(own.get(column, f'"{column}"') for column in columns)
    names = ", ".join(f'"{column}"' for column in columns)
    server.write(
        f"INSERT INTO {COPIED} ({names}) SELECT {values} FROM {COPIED} ORDER BY at DESC LIMIT 1"
    )
    return request_id


def test_the_newest_appear_by_themselves(browser: Browser, pages_server: PagesServer) -> None:
    browser.log_in(Who.OPERATOR, PASSWORD)
    browser.wait_for_path("/admin/")
    browser.open("/requests/")
    browser.run("window.isSamePage = true")
    try:
        request_id = end_a_request(pages_server)
        browser.wait_for_text(request_id[:12])
        assert browser.run("return window.isSamePage"), "the page has not been loaded again"
        browser.follow(request_id[:12])
        browser.wait_for_path(f"/requests/{request_id}")
        browser.wait_for_text("just-now")
        assert request_id in browser.text
        assert browser.check() == []
    finally:
        pages_server.write(f"DELETE FROM {COPIED} WHERE model_asked = 'just-now'")
