"""Turns with models that write what the test scripts: a load by the first message, thinking, calls
and their results, the request as code, regenerate, edit and stop. Conversations outlive a reload
and are searched and deleted."""

from __future__ import annotations

import json

import pytest
from selenium.webdriver.common.keys import Keys

from tests.browser.chromium import PHONE, Browser
from tests.browser.playground import conftest as steps
from tests.live.scripted.model import OSLO_CALL, SCHEMA, ScriptedModel, ScriptedServe

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]

SYSTEM = "You know the weather of every town."
RESULT = "rain until Sunday"
RESULT_ANSWER = "Take an umbrella."
LONG = "tell me everything"
COLD = "cold"
"""A model that no other test asks."""
QUESTION = "what is the weather in Oslo?"


def test_the_first_message_loads_the_model(browser: Browser, serve: ScriptedServe) -> None:
    """The choice shows that a message loads it, and the answer shows how far the load is."""
    model = serve.models[COLD]
    model.hold_load(True)
    model.answers("hello", "## Greetings\n\n- Hello **yourself**.")
    browser.choose('[name="model"]', COLD)
    browser.wait_for_text("Not loaded: the first message loads it.")
    browser.run(steps.EACH_LOOK_LATER)
    browser.type('[name="draft"]', "hello", Keys.ENTER)
    progress = "return document.querySelector('.pg-answer .hx-quiet')?.innerText ?? ''"
    browser.wait(lambda: "loading: weights 25 %" in browser.run(progress), "its progress")
    model.hold_load(False)
    browser.wait(lambda: steps.has_ended(browser, 1), "the answer of the model that was loaded")
    assert "Greetings" in browser.text and "Hello yourself." in browser.text
    assert "##" not in browser.text and "**" not in browser.text
    stats = browser.run(steps.LAST_STATS)
    assert all(word in stats for word in ("tokens in", "out", "first after", "tok/s")), stats
    browser.wait(lambda: "Not loaded" not in browser.text, "it is loaded")
    assert browser.check() == []


def test_calls_results_and_the_request_as_code(browser: Browser, model: ScriptedModel) -> None:
    """Thinking is there, folded; a call is shown, and its result goes back to the model."""
    model.answers(QUESTION, f"<think>\nIt is far north.\n</think>\n\n{OSLO_CALL}")
    model.answers(RESULT, RESULT_ANSWER)
    tools = [{"name": "get_weather", "parameters": SCHEMA}]
    steps.open_all(browser)
    browser.type('[name="tools"]', json.dumps(tools))
    browser.type('[name="system"]', SYSTEM)
    browser.type('[name="top_p"]', "0.9")
    browser.type('[name="seed"]', "7")
    steps.ask(browser, QUESTION, 1)
    assert "get_weather" in browser.text
    folded = (
        "const one = document.querySelector('.pg-answer .pg-thinking');"
        "return [one.checkVisibility(), one.open, one.querySelector('p').textContent.trim()]"
    )
    wanted = [True, False, "It is far north."]
    browser.wait(lambda: browser.run(folded) == wanted, "its thinking, folded")
    browser.type(".pg-call textarea", RESULT)
    steps.press(browser, "Send results")
    browser.wait(lambda: steps.has_ended(browser, 2), "the answer to the result")
    assert RESULT_ANSWER in browser.text
    prompt = model.received(RESULT)[-1].prompt
    assert "Oslo" in prompt and SYSTEM in prompt
    the_request_as_code(browser)
    assert browser.check() == []


def the_request_as_code(browser: Browser) -> None:
    for language, has in (
        ("curl", f'"model": "{steps.MODEL}"'),
        ("openai", "client.chat.completions.create("),
        ("anthropic", "client.messages.create("),
        ("javascript", 'import OpenAI from "openai"'),
    ):
        browser.choose('[name="language"]', language)
        code = browser.wait(
            lambda has=has: shown_code(browser) if has in shown_code(browser) else "", language
        )
        assert QUESTION in code and RESULT in code and SYSTEM in code
        assert "top_p" in code and "0.9" in code


def shown_code(browser: Browser) -> str:
    return str(browser.run("return document.querySelector('.pg-side pre').textContent"))


def test_regenerate_edit_and_stop(browser: Browser, model: ScriptedModel, username: str) -> None:
    """An answer leads to its record, which names the person as the end user; the page asked by the
    login's cookie."""
    model.answers("and in Bergen?", "Rain as well.", "Rain, always.")
    steps.ask(browser, "and in Bergen?", 1)
    before = len(model.received("and in Bergen?"))
    steps.press(browser, "Regenerate")
    browser.wait(lambda: len(model.received("and in Bergen?")) > before, "it is asked again")
    browser.wait(lambda: steps.has_ended(browser, 1), "the other answer")
    steps.press(browser, "Edit")
    draft = "return document.querySelector('[name=draft]').value"
    browser.wait(lambda: browser.run(draft) == "and in Bergen?", "the question in the field")
    assert "Rain" not in browser.text
    model.answers("and in Narvik?", "Snow.")
    steps.ask(browser, "and in Narvik?", 1)
    assert "Snow." in browser.text
    assert "Bergen" not in model.received("and in Narvik?")[-1].prompt
    model.answers(LONG, "and so on " * 400, token_s=0.2)
    browser.type('[name="draft"]', LONG, Keys.ENTER)
    browser.wait_for_text("and so")
    steps.press(browser, "Stop")
    browser.wait_for_text("Stopped.")
    browser.wait(lambda: model.moments_s("cancelled", LONG), "the engine cancels it")
    browser.wait(lambda: "$" in browser.run(steps.LAST_STATS), "its counts, by its record")
    browser.follow("Request")
    browser.wait_for_text("Model asked for")
    browser.find(f'a[href*="end_user={username}"]')
    browser.open(f"/usage/audit?action=key.create&actor=user:{username}")
    browser.wait_for_text("No entry is like that.")


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


def test_conversations_by_keyboard_on_a_phone(browser: Browser, model: ScriptedModel) -> None:
    """They outlive a reload, and are searched and deleted."""
    model.answers(QUESTION, RESULT_ANSWER)
    model.answers(LATER, LATER_ANSWER)
    for words in (QUESTION, LATER):
        steps.press(browser, "New")
        browser.wait(lambda: steps.talk(browser) == "", "an empty conversation")
        browser.choose('[name="model"]', steps.MODEL)
        steps.ask(browser, words, 1)
        steps.wait_until_kept(browser)
    browser.look_as(PHONE)
    browser.open("/playground/")
    browser.wait_for_text(LATER_ANSWER)
    assert LATER in steps.talk(browser) and QUESTION not in steps.talk(browser)
    steps.open_all(browser)
    browser.type('[name="search"]', "TAKE AN umbrella")
    browser.wait(lambda: steps.titles(browser) == [QUESTION], "the one with these words")
    browser.press_button(".pg-kept li > button")
    browser.wait_for_text(RESULT_ANSWER)
    assert LATER_ANSWER not in steps.talk(browser)
    browser.type('[name="search"]', LATER)
    browser.wait(lambda: steps.titles(browser) == [LATER], "the other")
    browser.press_button(".pg-kept li .hx-inline button")
    assert browser.answer(is_yes=False) == f"Delete “{LATER}”?"
    browser.press_button(".pg-kept li .hx-inline button")
    browser.answer(is_yes=True)
    browser.wait(lambda: steps.titles(browser) == [], "it is deleted")
    browser.wait_for_text("None has these words.")
    focused = "return document.activeElement.name"
    browser.wait(lambda: browser.run(focused) == "search", "the focus stays near")
    browser.type('[name="search"]', "x", Keys.BACKSPACE)
    browser.wait(lambda: QUESTION in steps.titles(browser), "all of them")
    assert browser.check() == []


def test_a_conversation_changed_elsewhere(browser: Browser, model: ScriptedModel) -> None:
    model.answers("first here", "One.")
    model.answers("then here", "Two.")
    steps.ask(browser, "first here", 1)
    steps.wait_until_kept(browser)
    id_ = browser.run("return Alpine.$data(document.querySelector('.pg-page')).id")
    browser.run(ELSEWHERE, id_)
    steps.ask(browser, "then here", 2)
    browser.wait_for_text("changed or deleted elsewhere")
    wanted = ["first here", "saved elsewhere"]
    browser.wait(lambda: set(wanted) <= set(steps.titles(browser)), "both are kept")
    browser.wait(lambda: any("409" in problem for problem in browser.check()), "the refusal")
