"""Refreshes by themselves, in a browser: they undo nothing that an operator has begun."""

from __future__ import annotations

import pytest

from tests.browser.chromium import Browser
from tests.browser.seed import OPERATOR, PASSWORD
from tests.browser.server import PagesServer

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(600)]

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


def test_a_row_ticked_while_the_list_is_requested_stays_ticked(browser: Browser) -> None:
    browser.log_in(OPERATOR, PASSWORD)
    browser.open("/admin/fleet/neuron/")
    browser.run(TICK_ONCE_REQUESTED, ROW)
    browser.wait(lambda: browser.run(ANSWERS) >= 1, "the list was answered")
    assert browser.run(IS_TICKED, ROW)
    # Unticked, the list is refreshed again.
    browser.run("document.querySelector(arguments[0]).click(); window.answers = 0", ROW)
    browser.wait(lambda: browser.run(ANSWERS) >= 1, "the list was refreshed")
    assert not browser.run(IS_TICKED, ROW)
    assert browser.check() == []


def test_a_buttons_request_outlasts_the_refreshes(
    browser: Browser, pages_server: PagesServer
) -> None:
    """The server answers the button after another refresh was due."""
    browser.log_in(OPERATOR, PASSWORD)
    browser.open("/admin/dashboard/model?name=big")
    browser.find("#pin-big")
    browser.run(COUNT_DUE_ONCE_POSTED)
    with pages_server.paused():
        browser.press_button("#pin-big")
        browser.wait(lambda: (browser.run("return window.numDue") or 0) >= 2, "refreshes are due")
    browser.wait_for_text("big is kept loaded")
    browser.press_button("#pin-big")
    browser.wait_for_text("big is loaded when it is requested")
    assert browser.check() == []
