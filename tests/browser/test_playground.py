"""What the playground can do, with a model that writes what the test says: thinking, calls and
their results, the request as code, regenerate, edit and stop."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from tests.browser.chromium import DESKTOP, Browser
from tests.browser.test_first_hour import has_ended, operators_password
from tests.live.asking import OSLO_CALLS, WEATHER
from tests.live.scripted_model import ScriptedModel
from tests.live.scripted_server import ScriptedServe

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]

MODEL = "hermes"
QUESTION = "what is the weather in Oslo?"
RESULT = "rain until Sunday"
LONG = "tell me everything"


@pytest.fixture
def serve(chromium: webdriver.Chrome, tmp_path: Path) -> Iterator[ScriptedServe]:
    serve = ScriptedServe(tmp_path / "var", tmp_path / "scripts")
    try:
        serve.wait_ready()
        yield serve
    finally:
        serve.end()


def test_the_playground(serve: ScriptedServe, chromium: webdriver.Chrome) -> None:
    browser = Browser(chromium, serve.url)
    browser.start_anew(DESKTOP)
    browser.log_in("admin", operators_password(serve))
    make_an_account(browser)
    browser.open("/playground/")
    browser.wait_for_text("Ask the model something")
    browser.choose('[name="model"]', MODEL)
    model = serve.models[MODEL]
    calls_and_results(browser, model)
    the_request_as_code(browser)
    regenerate_and_edit(browser, model)
    stop(browser, model)
    assert browser.check() == []
    browser.photograph("playground-with-calls")


def make_an_account(browser: Browser) -> None:
    """The admin's own requests are billed to it."""
    browser.open("/admin/metering/account/add/")
    browser.type("#id_name", "research")
    browser.press_button('[name="_save"]')
    browser.wait_for_path("/admin/metering/account/")


def ask(browser: Browser, words: str, num_answers: int) -> None:
    browser.type('[name="draft"]', words, Keys.ENTER)
    browser.wait(lambda: has_ended(browser, num_answers), f"the answer to {words!r}")


def press(browser: Browser, words: str) -> None:
    """The last button on the page that says so and is seen."""
    script = """
        const found = [...document.querySelectorAll("button")].filter(
            (one) => one.innerText === arguments[0] && one.checkVisibility()
        );
        found.at(-1)?.click();
        return found.length > 0;
    """
    browser.wait(lambda: browser.run(script, words), words)


def calls_and_results(browser: Browser, model: ScriptedModel) -> None:
    """Thinking is there, folded; a call is shown, and its result goes back to the model."""
    model.answers(QUESTION, f"<think>\nIt is far north.\n</think>\n\n{OSLO_CALLS[MODEL]}")
    model.answers(RESULT, "Take an umbrella.")
    tools = [{"name": "get_weather", "parameters": WEATHER["function"]["parameters"]}]  # type: ignore[index]
    open_all(browser)
    browser.type('[name="tools"]', json.dumps(tools))
    ask(browser, QUESTION, 1)
    assert "get_weather" in browser.text
    folded = browser.run(
        "const one = document.querySelector('.pg-answer .pg-thinking');"
        "return [one.checkVisibility(), one.open, one.querySelector('p').textContent.trim()]"
    )
    assert folded == [True, False, "It is far north."]
    browser.type(".pg-call textarea", RESULT)
    press(browser, "Send results")
    browser.wait(lambda: has_ended(browser, 2), "the answer to the result")
    assert "Take an umbrella." in browser.text
    assert "Oslo" in model.received(RESULT)[-1].prompt


def open_all(browser: Browser) -> None:
    browser.run(
        "document.querySelectorAll('.pg-side details').forEach((one) => { one.open = true })"
    )


def the_request_as_code(browser: Browser) -> None:
    """In each language, with what was asked."""
    for language, has in (
        ("curl", f'"model": "{MODEL}"'),
        ("openai", "client.chat.completions.create("),
        ("anthropic", "client.messages.create("),
        ("javascript", 'import OpenAI from "openai"'),
    ):
        browser.choose('[name="language"]', language)
        code = browser.wait(
            lambda has=has: shown_code(browser) if has in shown_code(browser) else "", language
        )
        assert QUESTION in code and RESULT in code


def shown_code(browser: Browser) -> str:
    return str(browser.run("return document.querySelector('.pg-side pre').textContent"))


def regenerate_and_edit(browser: Browser, model: ScriptedModel) -> None:
    model.answers("and in Bergen?", "Rain as well.", "Rain, always.")
    ask(browser, "and in Bergen?", 3)
    before = len(model.received("and in Bergen?"))
    press(browser, "Regenerate")
    browser.wait(lambda: len(model.received("and in Bergen?")) > before, "it is asked again")
    browser.wait(lambda: has_ended(browser, 3), "the other answer")
    press(browser, "Edit")
    draft = "return document.querySelector('[name=draft]').value"
    browser.wait(lambda: browser.run(draft) == "and in Bergen?", "the question in the field")
    assert "Rain" not in browser.text


def stop(browser: Browser, model: ScriptedModel) -> None:
    """The engine drops what nobody waits for."""
    model.answers(LONG, "and so on " * 400, token_s=0.2)
    browser.type('[name="draft"]', LONG, Keys.ENTER)
    browser.wait_for_text("and so")
    press(browser, "Stop")
    browser.wait_for_text("Stopped.")
    browser.wait(lambda: model.moments_s("cancelled", LONG), "the engine was told")
