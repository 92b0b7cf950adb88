"""An operator's first hour, in a real browser: a new server with the default model's file, from the
first log-in to the audit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from tests.browser.chromium import DESKTOP, PHONE, Browser
from tests.live.conftest import with_caches
from tests.live.serving import READY_TIMEOUT_S, Serve, operators_password, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(1200)]

COLLEAGUE, PASSWORD = "mia", "what-a-colleague-types"
ACCOUNT, MODEL = "research", "smollm2"
BUDGET_USD = "0.002"
"""Enough for a few answers, at the price below: the browser asks until it is spent."""
MAX_QUESTIONS = 12
QUESTIONS = (
    "What is the capital of France?",
    "Why is the sky blue? Explain it in three sentences.",
    "Tell me a long story about a lighthouse keeper and a storm.",
)


@pytest.fixture
def serve(
    chromium: webdriver.Chrome,
    tmp_path: Path,
    model_cache_dir: Path,
    native_cache_dir: Path,
    default_gguf: Path,
) -> Iterator[Serve]:
    """Starts a server without a model: the operator adds it."""
    with Serve(
        with_caches(tmp_path / "var", model_cache_dir, native_cache_dir), "--no-model"
    ) as serve:
        yield serve


@pytest.fixture
def browser(serve: Serve, chromium: webdriver.Chrome) -> Browser:
    visitor = Browser(chromium, serve.url)
    visitor.start_anew(DESKTOP)
    return visitor


def test_an_operators_first_hour(browser: Browser, serve: Serve, default_gguf: Path) -> None:
    operator = operators_password(serve)
    browser.open("/")
    browser.wait_for_path("/login/")
    browser.log_in("admin", operator)
    browser.wait_for_path("/admin/")
    browser.wait_for_text("What to do next")
    browser.wait_for_text("The catalogue is empty.")
    browser.wait_for_text("online")

    add_the_model(browser, default_gguf)
    load_it(browser)
    key, invitation = make_a_key_for_a_colleague(browser)
    assert serve_answers(serve, key)

    browser.start_anew(DESKTOP)
    browser.open(urlsplit(invitation).path)
    browser.type("#id_new_password1", PASSWORD)
    browser.type("#id_new_password2", PASSWORD, Keys.ENTER)
    browser.wait_for_path("/playground/")
    chat_until_the_budget_stops_it(browser)
    browser.look_as(PHONE)
    browser.open("/usage/?by=model")
    browser.wait_for_text("Budgets left")
    browser.wait_for_text(MODEL)
    assert browser.run("return document.querySelector('meter').value") < 50
    assert browser.check() == []

    browser.start_anew(DESKTOP)
    browser.log_in("admin", operator)
    browser.open("/usage/accounts")
    for words in (ACCOUNT, "insufficient_quota", "$1.00"):
        browser.wait_for_text(words)
    browser.open("/usage/audit")
    for action in ("model.create", "user.create", "membership.set", "budget.create"):
        browser.wait_for_text(action)
    assert browser.check() == []


def add_the_model(browser: Browser, file: Path) -> None:
    browser.follow("From files or by hand")
    browser.type("#id_name", MODEL)
    browser.type("#id_source", f"path:{file}")
    browser.press_button("fieldset:has(#id_input_price_micro_usd) summary")
    browser.type("#id_input_price_micro_usd", "1")
    browser.type("#id_output_price_micro_usd", "2")
    browser.press_button('[name="_save"]')
    browser.wait_for_path("/admin/fleet/cataloguemodel/")
    browser.wait_for_text(MODEL)


def load_it(browser: Browser) -> None:
    """Where it is started, its progress is seen."""
    browser.open("/admin/")
    browser.keep_notices()
    browser.press_button(f"#load-{MODEL}")
    browser.wait_for_notice(f"Loading {MODEL} on ")
    wait_until(lambda: "loaded on " in browser.run(NOTICES), "it is loaded", READY_TIMEOUT_S)
    browser.wait_for_text("1 ready")
    assert browser.check() == []


def make_a_key_for_a_colleague(browser: Browser) -> tuple[str, str]:
    """The key, and the link at which the colleague chooses a password."""
    browser.open("/admin/metering/account/add/")
    browser.type("#id_name", ACCOUNT)
    browser.press_button("#budgets-group a.add-row")
    browser.type("#id_budgets-0-cap", BUDGET_USD)
    browser.choose("#id_budgets-0-unit", "micro_usd")
    browser.choose("#id_budgets-0-window", "balance")
    browser.press_button('[name="_save"]')
    browser.wait_for_path("/admin/metering/account/")

    browser.open("/admin/auth/user/add/")
    browser.type("#id_username", COLLEAGUE)
    browser.type("#id_email", f"{COLLEAGUE}@example.org")
    browser.choose("#id_memberships-0-account", ACCOUNT)
    browser.choose("#id_memberships-0-role", "member")
    browser.press_button('[name="_save"]')
    invitation = browser.find('[id^="invitation-"]').text

    browser.open("/admin/metering/apikey/add/")
    browser.choose("#id_account", ACCOUNT)
    browser.type("#id_name", f"{COLLEAGUE}'s editor")
    browser.press_button('[name="_save"]')
    key = browser.find("#api-key").text
    assert key.startswith("hx-")
    assert browser.check() == []
    return key, invitation


def serve_answers(serve: Serve, key: str) -> bool:
    """The key that the page showed is one."""
    headers = {"Authorization": f"Bearer {key}"}
    usage = httpx.get(f"{serve.url}/api/usage", headers=headers, timeout=60.0)
    return usage.status_code == 200


def chat_until_the_budget_stops_it(browser: Browser) -> None:
    browser.wait(lambda: browser.run(CHOSEN_MODEL) == MODEL, "the model is there to choose")
    browser.type('[name="temperature"]', "0")
    for number in range(MAX_QUESTIONS):
        browser.type('[name="draft"]', QUESTIONS[number % len(QUESTIONS)], Keys.ENTER)
        is_answered = partial(has_ended, browser, number + 1)
        wait_until(is_answered, "an answer, or a refusal", READY_TIMEOUT_S)
        if number == 0:
            browser.wait_for_text("Paris")
            browser.wait_for_text("tok/s")
        if refusal := browser.run(LAST_ERROR):
            assert "budget" in refusal
            browser.photograph("playground-when-the-budget-is-spent")
            assert all("429" in problem for problem in browser.check())
            return
    raise AssertionError(f"{MAX_QUESTIONS} answers, and the budget is not spent")


NOTICES = "return window.notices"
"""A script that returns what ``keep_notices`` has kept."""
CHOSEN_MODEL = """
    const page = document.querySelector(".pg-page");
    return page?._x_dataStack ? Alpine.$data(page).model : "";
"""
LAST_ERROR = """
    const shown = [...document.querySelectorAll(".pg-answer .hx-bad")];
    return shown.length ? shown.at(-1).innerText.trim() : "";
"""


def has_ended(browser: Browser, num_answers: int) -> bool:
    answers = browser.run("return document.querySelectorAll('.pg-answer').length")
    running = browser.run("return Alpine.$data(document.querySelector('.pg-page')).isRunning")
    return bool(answers == num_answers and not running)
