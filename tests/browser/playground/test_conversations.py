"""Conversations outlive a reload and are searched and deleted."""

from __future__ import annotations

import pytest
from selenium.webdriver.common.keys import Keys

from tests.browser.chromium import PHONE, Browser
from tests.browser.playground.steps import (
    LAST_STATS,
    MODEL,
    ask,
    choose,
    open_all,
    press,
    start_another,
    talk,
    titles,
    wait_until_kept,
)
from tests.live.scripted.model import ScriptedModel

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]

QUESTION, ANSWER = "what is the weather in Oslo?", "Take an umbrella."
LATER, LATER_ANSWER = "and hotter?", "The sun, too."
ELSEWHERE = """
    const headers = {"X-CSRFToken": document.getElementById("playground").dataset.csrf};
    const send = (method, url, body) => {
        const asked = new XMLHttpRequest();
        asked.open(method, url, false);
        asked.setRequestHeader("X-CSRFToken", headers["X-CSRFToken"]);
        asked.send(body);
        return JSON.parse(asked.responseText);
    };
    const url = `/playground/conversations/${arguments[0]}`;
    const {revision} = send("GET", url);
    const turns = [{role: "user", text: "saved elsewhere"}];
    send("PUT", `${url}?revision=${revision}`, JSON.stringify({turns}));
"""


def two_conversations(browser: Browser, model: ScriptedModel) -> None:
    model.answers(QUESTION, ANSWER)
    model.answers(LATER, LATER_ANSWER)
    for words in (QUESTION, LATER):
        start_another(browser)
        choose(browser, MODEL)
        ask(browser, words, 1)
        wait_until_kept(browser)


def test_a_reload_and_an_earlier_conversation(browser: Browser, model: ScriptedModel) -> None:
    """The one that is open comes back by itself, the others from the list."""
    two_conversations(browser, model)
    browser.open("/playground/")
    browser.wait_for_text(LATER_ANSWER)
    assert LATER in talk(browser) and QUESTION not in talk(browser)
    open_all(browser)
    press(browser, QUESTION)
    browser.wait_for_text(ANSWER)
    assert LATER not in talk(browser)
    start_another(browser)


def test_conversations_by_keyboard_on_a_phone(browser: Browser, model: ScriptedModel) -> None:
    """Found by the words of an answer, opened and deleted."""
    two_conversations(browser, model)
    browser.look_as(PHONE)
    browser.open("/playground/")
    browser.wait_for_text(LATER_ANSWER)
    open_all(browser)
    browser.type('[name="search"]', "TAKE AN umbrella")
    browser.wait(lambda: titles(browser) == [QUESTION], "the one with these words")
    browser.press_button(".pg-kept li > button")
    browser.wait_for_text(ANSWER)
    assert LATER_ANSWER not in talk(browser)
    browser.type('[name="search"]', LATER)
    browser.wait(lambda: titles(browser) == [LATER], "the other")
    browser.press_button(".pg-kept li .hx-inline button")
    assert browser.dismiss() == f"Delete “{LATER}”?"
    browser.press_button(".pg-kept li .hx-inline button")
    browser.accept()
    browser.wait(lambda: titles(browser) == [], "it is deleted")
    browser.wait_for_text("None has these words.")
    focused = "return document.activeElement.name"
    browser.wait(lambda: browser.run(focused) == "search", "the focus stays near")
    browser.type('[name="search"]', "x", Keys.BACKSPACE)
    browser.wait(lambda: QUESTION in titles(browser), "all of them")
    assert browser.check() == []
    browser.photograph("playground-conversations-on-a-phone")


def test_a_conversation_changed_elsewhere(browser: Browser, model: ScriptedModel) -> None:
    """Both are kept."""
    model.answers("first here", "One.")
    model.answers("then here", "Two.")
    ask(browser, "first here", 1)
    wait_until_kept(browser)
    id_ = browser.run("return Alpine.$data(document.querySelector('.pg-page')).id")
    browser.run(ELSEWHERE, id_)
    ask(browser, "then here", 2)
    browser.wait_for_text("changed or deleted elsewhere")
    wanted = ["first here", "saved elsewhere"]
    browser.wait(lambda: set(wanted) <= set(titles(browser)), "both are kept")
    browser.wait(lambda: any("409" in problem for problem in browser.check()), "the refusal")


def test_an_answer_leads_to_its_request_and_makes_no_key(
    browser: Browser, model: ScriptedModel, username: str
) -> None:
    """Its record names the person as the end user; the page asked by the login's cookie."""
    model.answers(QUESTION, ANSWER)
    ask(browser, QUESTION, 1)
    browser.wait(lambda: "$" in browser.run(LAST_STATS), "its record")
    browser.follow("Request")
    browser.wait_for_text("Model asked for")
    browser.find(f'a[href*="end_user={username}"]')
    browser.open(f"/usage/audit?action=key.create&actor=user:{username}")
    browser.wait_for_text("No entry is like that.")
