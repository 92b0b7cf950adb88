"""Answers as the playground shows them: Markdown, by a schema, of images, of models side
by side."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from tests.browser.chromium import DARK_PHONE, WIDE, Browser, look_at, violations
from tests.browser.playground import conftest as steps
from tests.inference.image_files import png
from tests.live.scripted.model import OSLO, SCHEMA, ScriptedModel, ScriptedServe

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]

SIDE_BY_SIDE = """
    const answers = [...document.querySelectorAll(".pg-answer")].at(-1);
    const words = (one, css) => one.querySelector(css).innerText;
    return [...answers.querySelectorAll(".pg-one")].map(
        (one) => [words(one, ".pg-model"), one.innerText, words(one, ".pg-stats")]
    );
"""
FIGURES = re.compile(
    r"\d+ tokens in.* · \d+ out · first after \d+ ms · [\d.]+ tok/s · \$[\d.]+", re.DOTALL
)
THIRD = "small"
CODE = 'def weather():\n    return "rain"'
MARKDOWN = f"""| town | sun |
|---|---|
| Oslo | 4 h |

See [the record](https://example.org/sun), <b>no</b> [trick](javascript:alert(1)), and
$x^2 \\le \\frac{{\\pi}}{{2}}$.

```python
{CODE}
```
"""


def test_an_answer_in_markdown(browser: Browser, model: ScriptedModel) -> None:
    """Tables, links, maths and code, whose button copies it; its own HTML stays text."""
    model.answers("show me", MARKDOWN)
    steps.ask(browser, "show me", 1)
    browser.find(".pg-in-keyword")
    shown = browser.run(
        "const answer = document.querySelector('.pg-answer');"
        "const texts = (css) => [...answer.querySelectorAll(css)].map((one) => one.textContent);"
        "return {heads: texts('th'), cells: texts('td'), links: "
        "[...answer.querySelectorAll('.pg-part a')].map((one) => [one.textContent, one.href]),"
        "fractions: texts('math mfrac'), keywords: texts('.pg-in-keyword'),"
        "strings: texts('.pg-in-string'), bold: texts('.pg-part b')}"
    )
    assert shown == {
        "heads": ["town", "sun"],
        "cells": ["Oslo", "4 h"],
        "links": [["the record", "https://example.org/sun"]],
        "fractions": ["π2"],
        "keywords": ["def", "return"],
        "strings": ['"rain"'],
        "bold": [],
    }
    assert "<b>no</b>" in steps.talk(browser) and "javascript:alert" in steps.talk(browser)
    browser.run(
        "window.helexaCopy = (text, done) => { document.body.dataset.copied = text; done() }"
    )
    browser.run(
        "document.querySelector('.pg-part').innerHTML += "
        "'<b x-init=\"document.body.dataset.ran = 1\">x</b>'"
    )
    browser.click(".pg-copy")
    browser.wait(lambda: browser.run("return document.body.dataset.copied") == CODE, "the code")
    assert browser.run("return document.body.dataset.ran") is None, "Alpine leaves answers alone"
    assert browser.check() == []


def test_an_answer_by_a_schema_and_of_an_image(
    browser: Browser, seeing: ScriptedModel, tmp_path: Path
) -> None:
    """Images are offered once it is known that the model sees, which is when it has been loaded."""
    answer = json.dumps(OSLO, separators=(",", ":"))
    seeing.answers("as JSON, where?", answer)
    seeing.answers("what is this?", answer)
    browser.choose('[name="model"]', steps.SEEING)
    steps.open_all(browser)
    browser.type('[name="schema"]', "{ no schema")
    browser.type('[name="draft"]', "as JSON, where?", Keys.ENTER)
    browser.wait_for_text("The schema is not JSON")
    browser.type('[name="schema"]', json.dumps(SCHEMA))
    steps.press(browser, "Send")
    browser.wait(lambda: steps.has_ended(browser, 1), "the answer by the schema")
    assert answer in steps.talk(browser)
    assert seeing.received("as JSON, where?")[-1].params.grammar is not None
    browser.wait_for_text("Add images")
    image = tmp_path / "red.png"
    image.write_bytes(png(56, 56))
    browser.find("input[type=file]").send_keys(str(image))
    browser.find(".pg-thumb img")
    steps.ask(browser, "what is this?", 2)
    received = seeing.received("what is this?")[-1]
    assert received.num_images == 1
    assert received.prompt.count("<|image_pad|>") == 4
    width = "return document.querySelector('.pg-turn .pg-image')?.naturalWidth"
    browser.wait(lambda: browser.run(width) == 56, "the image is shown as it is")
    assert browser.check() == []


def test_models_side_by_side(browser: Browser, serve: ScriptedServe) -> None:
    """All answer the same at once, each with its figures; the first one's answer is continued."""
    others = [steps.SEEING, THIRD]
    names = [steps.MODEL, *others]
    for name in names:
        serve.models[name].answers("which is larger?", f"The sun by {name}.")
        serve.models[name].answers("and hotter?", f"The sun too by {name}.")
    browser.run(steps.EACH_LOOK_LATER)
    for place, name in enumerate(others):
        steps.press(browser, "Compare")
        browser.choose(f'[name="beside-{place}"]', name)
    steps.ask(browser, "which is larger?", 1)
    answers = browser.wait(lambda: with_figures(browser, len(names)), "the figures of each")
    assert [model for model, *_ in answers] == names
    assert [f"The sun by {model}." in text for model, text, _ in answers] == [True] * len(names)
    steps.ask(browser, "and hotter?", 2)
    for name in others:
        assert f"The sun by {steps.MODEL}." in serve.models[name].received("and hotter?")[-1].prompt
    for view in (WIDE, DARK_PHONE):
        look_at(browser, view)
        assert violations(browser) + browser.check() == []


def with_figures(browser: Browser, number: int) -> list[list[str]]:
    """The last answers, where each of so many has its first token, rate and cost."""
    answers: list[list[str]] = browser.run(SIDE_BY_SIDE)
    have = [words for *_, words in answers if FIGURES.fullmatch(words)]
    return answers if len(have) == number else []


def test_failed_turns_are_not_sent_again(browser: Browser) -> None:
    def sent(*turns: dict[str, Any]) -> Any:
        script = "return import('/static/playground/chat.js').then((chat) => chat.messagesOf"
        return browser.run(f"{script}('', arguments[0]))", list(turns))

    asked = {"role": "user", "text": "where?"}
    failed = {"role": "assistant", "text": "", "calls": [], "error": "It went away."}
    again = {"role": "user", "text": "still there?"}
    assert sent(asked, failed, again) == [{"role": "user", "content": "where?\n\nstill there?"}]
    (message,) = sent(asked | {"images": ["data:image/png;base64,AA=="]}, failed, again)
    assert [part["type"] for part in message["content"]] == ["image_url", "text", "text"]
    answered = sent(asked, failed | {"text": "In Os"}, again)
    assert [message["role"] for message in answered] == ["user", "assistant", "user"]
