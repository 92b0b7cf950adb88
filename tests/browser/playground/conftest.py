"""A server with models that write what the tests script, and visitors who are logged in and have no
conversations yet, one for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from selenium import webdriver

from tests.browser.chromium import DESKTOP, Browser
from tests.browser.playground.steps import MODEL, SEEING
from tests.live.catalogue import run
from tests.live.scripted.model import ScriptedModel
from tests.live.scripted.server import ScriptedServe

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


@pytest.fixture(scope="session")
def usernames(serve: ScriptedServe) -> Iterator[str]:
    """Those who have not been here yet."""
    return (f"visitor-{number}" for number in itertools.count())


@pytest.fixture
def username(usernames: Iterator[str]) -> str:
    """An operator of this test alone: a save of the test before may come as late as it likes."""
    return next(usernames)


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
    """The one that is chosen."""
    return serve.models[MODEL]


@pytest.fixture
def seeing(serve: ScriptedServe) -> ScriptedModel:
    """One that reads images."""
    return serve.models[SEEING]
