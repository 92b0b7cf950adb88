"""``Browser.wait``: what counts as not there yet, and what ends it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from selenium import webdriver
from selenium.common.exceptions import (
    ElementNotInteractableException,
    InvalidSessionIdException,
    JavascriptException,
    TimeoutException,
)

from tests.browser import chromium
from tests.browser.chromium import UNTOUCHED, Browser

URL = "http://127.0.0.1:1"


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch) -> Browser:
    """Looks twice: when it begins and once the time is over."""
    monkeypatch.setattr(chromium, "WAIT_S", 0.0)
    monkeypatch.setattr(chromium, "POLL_INTERVAL_S", 0.001)
    page = SimpleNamespace(current_url=f"{URL}/playground/")
    return Browser(cast(webdriver.Chrome, page), URL)


def looks(*seen: Any) -> Callable[[], Any]:
    """Returns or raises one after the other."""
    left = list(seen)

    def look() -> Any:
        one = left.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    return look


@pytest.mark.parametrize(
    "early",
    [
        *("", [], JavascriptException("of null"), IndexError(), KeyError("rate")),
        *(ValueError("no number"), TypeError("None"), AttributeError("None")),
    ],
    ids=repr,
)
def test_a_page_that_is_not_drawn_yet_is_looked_at_again(browser: Browser, early: Any) -> None:
    assert browser.wait(looks(early, "drawn"), "a title") == "drawn"


def test_what_the_last_look_raised_is_seen(browser: Browser) -> None:
    last = IndexError("no title")
    with pytest.raises(TimeoutException, match="a title, at /playground/") as raised:
        browser.wait(looks("", last), "a title")
    assert raised.value.__cause__ is last


@pytest.mark.parametrize("error", [InvalidSessionIdException("ended"), AssertionError("wrong")])
def test_what_no_other_look_changes_is_raised_at_once(browser: Browser, error: Exception) -> None:
    with pytest.raises(type(error)):
        browser.wait(looks(error, "drawn"), "a title")


def test_a_click_is_repeated_only_where_nothing_received_it(browser: Browser) -> None:
    hidden = ElementNotInteractableException("hidden")
    assert browser.wait(looks(hidden, "clicked"), "a button", UNTOUCHED) == "clicked"
    with pytest.raises(JavascriptException):
        browser.wait(looks(JavascriptException("late"), "clicked"), "a button", UNTOUCHED)
