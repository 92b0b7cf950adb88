"""What the playground can do, with models that write what the test says: loading one, thinking,
calls and their results, the request as code, regenerate, edit and stop, answers by a schema,
images, and conversations that outlive a reload."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from tests.browser.chromium import DESKTOP, Browser
from tests.browser.test_first_hour import has_ended, operators_password
from tests.inference.image_files import png
from tests.live.asking import OSLO, OSLO_CALLS, SCHEMA, WEATHER
from tests.live.scripted_model import ScriptedModel
from tests.live.scripted_server import ScriptedServe

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]

MODEL, SEEING = "hermes", "seeing"
QUESTION = "what is the weather in Oslo?"
SYSTEM = "You know the weather of every town."
RESULT = "rain until Sunday"
RESULT_ANSWER = "Take an umbrella."
LONG = "tell me everything"


@pytest.fixture
def serve(chromium: webdriver.Chrome, tmp_path: Path) -> Iterator[ScriptedServe]:
    serve = ScriptedServe(tmp_path / "var", tmp_path / "scripts")
    try:
        serve.wait_ready()
        yield serve
    finally:
        serve.end()


def test_the_playground(serve: ScriptedServe, chromium: webdriver.Chrome, tmp_path: Path) -> None:
    browser = Browser(chromium, serve.url)
    browser.start_anew(DESKTOP)
    browser.log_in("admin", operators_password(serve))
    make_an_account(browser)
    browser.open("/playground/")
    browser.wait_for_text("Ask the model something")
    model, seeing = serve.models[MODEL], serve.models[SEEING]
    load_by_the_first_message(browser, model)
    calls_and_results(browser, model)
    the_request_as_code(browser)
    browser.photograph("playground-with-calls")
    regenerate_and_edit(browser, model)
    stop(browser, model)
    a_reload_and_an_earlier_conversation(browser)
    an_answer_by_a_schema(browser, model)
    an_image(browser, seeing, tmp_path)
    assert browser.check() == []
    browser.photograph("playground-with-an-image")


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


def load_by_the_first_message(browser: Browser, model: ScriptedModel) -> None:
    """Where it is chosen it says so, and it shows how far it is."""
    model.hold_load(True)
    model.answers("hello", "## Greetings\n\n- Hello **yourself**.")
    browser.choose('[name="model"]', MODEL)
    browser.wait_for_text("Not loaded: the first message loads it.")
    browser.type('[name="draft"]', "hello", Keys.ENTER)
    progress = "return document.querySelector('.pg-answer .hx-quiet').innerText"
    browser.wait(lambda: "loading: weights 25 %" in browser.run(progress), "its progress")
    browser.photograph("playground-while-loading")
    model.hold_load(False)
    browser.wait(lambda: has_ended(browser, 1), "the answer of the model that was loaded")
    assert "Greetings" in browser.text and "• Hello yourself." in browser.text
    assert "##" not in browser.text and "**" not in browser.text
    stats = browser.find(".pg-answer .pg-stats").text
    assert all(word in stats for word in ("tokens in", "out", "first after", "tok/s")), stats
    browser.wait(lambda: "Not loaded" not in browser.text, "it is loaded")
    press(browser, "New")


def calls_and_results(browser: Browser, model: ScriptedModel) -> None:
    """Thinking is there, folded; a call is shown, and its result goes back to the model."""
    model.answers(QUESTION, f"<think>\nIt is far north.\n</think>\n\n{OSLO_CALLS[MODEL]}")
    model.answers(RESULT, RESULT_ANSWER)
    tools = [{"name": "get_weather", "parameters": WEATHER["function"]["parameters"]}]  # type: ignore[index]
    open_all(browser)
    browser.type('[name="tools"]', json.dumps(tools))
    browser.type('[name="system"]', SYSTEM)
    browser.type('[name="top_p"]', "0.9")
    browser.type('[name="seed"]', "7")
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
    assert RESULT_ANSWER in browser.text
    prompt = model.received(RESULT)[-1].prompt
    assert "Oslo" in prompt and SYSTEM in prompt


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
        assert QUESTION in code and RESULT in code and SYSTEM in code
        assert "top_p" in code and "0.9" in code


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
    model.answers("and in Narvik?", "Snow.")
    ask(browser, "and in Narvik?", 3)
    assert "Snow." in browser.text
    assert "Bergen" not in model.received("and in Narvik?")[-1].prompt


def stop(browser: Browser, model: ScriptedModel) -> None:
    """The engine drops what nobody waits for."""
    model.answers(LONG, "and so on " * 400, token_s=0.2)
    browser.type('[name="draft"]', LONG, Keys.ENTER)
    browser.wait_for_text("and so")
    press(browser, "Stop")
    browser.wait_for_text("Stopped.")
    browser.wait(lambda: model.moments_s("cancelled", LONG), "the engine was told")


def a_reload_and_an_earlier_conversation(browser: Browser) -> None:
    """The one that is open comes back by itself, the others from the list."""
    browser.open("/playground/")
    browser.wait_for_text(RESULT_ANSWER)
    assert QUESTION in browser.text and "Stopped." in browser.text
    open_all(browser)
    press(browser, "hello")
    browser.wait_for_text("Hello yourself.")
    assert QUESTION not in talk(browser)
    press(browser, "New")
    browser.wait(lambda: "Hello yourself." not in talk(browser), "an empty conversation")


def talk(browser: Browser) -> str:
    return str(browser.run("return document.querySelector('.pg-turns').innerText"))


def an_answer_by_a_schema(browser: Browser, model: ScriptedModel) -> None:
    """The engine is given its grammar, and refuses what breaks it."""
    answer = json.dumps(OSLO, separators=(",", ":"))
    model.answers("as JSON, where?", answer)
    browser.type('[name="tools"]', " ")
    browser.type('[name="schema"]', "{ no schema")
    browser.type('[name="draft"]', "as JSON, where?", Keys.ENTER)
    browser.wait_for_text("The schema is not JSON")
    browser.type('[name="schema"]', json.dumps(SCHEMA))
    press(browser, "Send")
    browser.wait(lambda: has_ended(browser, 1), "the answer by the schema")
    assert answer in talk(browser)
    assert model.received("as JSON, where?")[-1].params.grammar is not None
    press(browser, "New")
    browser.type('[name="schema"]', " ")


def an_image(browser: Browser, seeing: ScriptedModel, folder: Path) -> None:
    """Offered once it is known that the model sees, which is when it has been loaded."""
    seeing.answers("are you there?", "Yes.")
    seeing.answers("what is this?", "Something red.")
    browser.choose('[name="model"]', SEEING)
    ask(browser, "are you there?", 1)
    browser.wait_for_text("Add images")
    picture = folder / "red.png"
    picture.write_bytes(png(56, 56))
    browser.find("input[type=file]").send_keys(str(picture))
    browser.find(".pg-thumb img")
    ask(browser, "what is this?", 2)
    assert "Something red." in browser.text
    received = seeing.received("what is this?")[-1]
    assert received.num_images == 1
    assert received.prompt.count("<|image_pad|>") == 4
    assert browser.run("return document.querySelector('.pg-turn .pg-image').naturalWidth") == 56
