"""A server with models that write what the tests script, visitors who are logged in and have no
conversations yet, one for each test, and what tests do in the playground's page."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from tests.browser.chromium import DESKTOP, Browser
from tests.live.scripted.model import ScriptedModel, ScriptedServe
from tests.live.serving import run

PRICES = {"input_price_micro_usd": 1_000_000_000, "output_price_micro_usd": 1_000_000_000}
"""Of a million tokens: a few cost as much as a page shows."""
PASSWORD = "what-each-visitor-types"
MAKE_VISITORS = """
from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import User
from metering.services import account_create
account_create(actor=COMMAND, name="research")
rights = {"password": make_password(%r), "is_staff": True, "is_superuser": True}
User.objects.bulk_create(User(username=f"visitor-{number}", **rights) for number in range(100))
"""
"""Their requests are billed to the account."""
FORGET = "localStorage.clear(); sessionStorage.clear()"


@pytest.fixture(scope="session")
def serve(
    chromium: webdriver.Chrome, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ScriptedServe]:
    """After Chromium, so that nothing starts where that is not."""
    folder = tmp_path_factory.mktemp("playground")
    with ScriptedServe(folder / "var", folder / "scripts", PRICES) as serve:
        run(serve, MAKE_VISITORS % PASSWORD)
        yield serve


USERNAMES = (f"visitor-{number}" for number in itertools.count())


@pytest.fixture
def username() -> str:
    """An operator of this test alone: a save of the test before may come as late as it likes."""
    return next(USERNAMES)


@pytest.fixture
def browser(serve: ScriptedServe, chromium: webdriver.Chrome, username: str) -> Browser:
    """A browser in the playground, logged in, with a model chosen."""
    visitor = Browser(chromium, serve.url)
    visitor.start_anew(DESKTOP)
    visitor.log_in(username, PASSWORD)
    visitor.run(FORGET)
    visitor.open("/playground/")
    visitor.wait_for_text("Ask the model something")
    visitor.choose('[name="model"]', MODEL)
    return visitor


@pytest.fixture
def model(serve: ScriptedServe) -> ScriptedModel:
    return serve.models[MODEL]


@pytest.fixture
def seeing(serve: ScriptedServe) -> ScriptedModel:
    return serve.models[SEEING]


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
    script = """
        const found = [...document.querySelectorAll("button")].filter(
            (one) => one.innerText === arguments[0] && one.checkVisibility()
        );
        found.at(-1)?.click();
        return found.length > 0;
    """
    browser.wait(lambda: browser.run(script, words), words)


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


def has_ended(browser: Browser, num_answers: int) -> bool:
    answers = browser.run("return document.querySelectorAll('.pg-answer').length")
    running = browser.run("return Alpine.$data(document.querySelector('.pg-page')).isRunning")
    return bool(answers == num_answers and not running)
