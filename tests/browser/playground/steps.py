"""What tests of the playground do in its page."""

from __future__ import annotations

from selenium.webdriver.common.keys import Keys

from tests.browser.chromium import Browser

MODEL, SEEING = "hermes", "seeing"


LAST_STATS = "return [...document.querySelectorAll('.pg-answer .pg-stats')].at(-1)?.innerText ?? ''"


EACH_LOOK_LATER = "let ms = 0; performance.now = () => (ms += 1);"
"""The page's clock: tokens that reach it together have no rate by the real one."""
KEPT = """
    const {id} = Alpine.$data(document.querySelector(".pg-page"));
    const asked = new XMLHttpRequest();
    asked.open("GET", `/playground/conversations/${id}`, false);
    asked.send();
    const answer = asked.status === 200 ? JSON.parse(asked.responseText).state.turns.at(-1) : {};
    return answer.stats?.costMicroUsd > 0;
"""
"""Whether the server has the conversation with its last answer's cost, which is saved last."""


def ask(browser: Browser, words: str, num_answers: int) -> None:
    browser.type('[name="draft"]', words, Keys.ENTER)
    browser.wait(lambda: has_ended(browser, num_answers), f"the answer to {words!r}")


def press(browser: Browser, words: str) -> None:
    """Presses the last visible button with this text."""
    script = """
        const found = [...document.querySelectorAll("button")].filter(
            (one) => one.innerText === arguments[0] && one.checkVisibility()
        );
        found.at(-1)?.click();
        return found.length > 0;
    """
    browser.wait(lambda: browser.run(script, words), words)


def start_another(browser: Browser) -> None:
    """Ends with an empty conversation."""
    press(browser, "New")
    browser.wait(lambda: talk(browser) == "", "an empty conversation")


def wait_until_kept(browser: Browser) -> None:
    """Until the page has saved its conversation and has nothing left to save."""
    browser.wait(lambda: browser.run(KEPT), "the server keeps the conversation")


def open_all(browser: Browser) -> None:
    browser.run(
        "document.querySelectorAll('.pg-side details').forEach((one) => { one.open = true })"
    )


def talk(browser: Browser) -> str:
    return str(browser.run("return document.querySelector('.pg-turns').innerText"))


def titles(browser: Browser) -> list[str]:
    script = "[...document.querySelectorAll('.pg-kept li > button')].map((one) => one.textContent)"
    return list(browser.run(f"return {script}"))


def choose(browser: Browser, model: str) -> None:
    """The conversation has no turns."""
    browser.choose('[name="model"]', model)


def has_ended(browser: Browser, num_answers: int) -> bool:
    answers = browser.run("return document.querySelectorAll('.pg-answer').length")
    running = browser.run("return Alpine.$data(document.querySelector('.pg-page')).isRunning")
    return bool(answers == num_answers and not running)
