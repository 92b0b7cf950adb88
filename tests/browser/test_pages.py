"""Pages in a real browser: at two widths, in the dark, by keyboard."""

from __future__ import annotations

import pytest
from selenium.webdriver.common.keys import Keys

from tests.browser.chromium import (
    DARK_DESKTOP,
    DARK_PHONE,
    DESKTOP,
    PHONE,
    Browser,
    View,
)
from tests.browser.seed import MEMBER, OPERATOR, PASSWORD
from tests.browser.server import PagesServer

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]

OPERATORS_PAGES = {
    "dashboard": "/admin/",
    "catalogue": "/admin/fleet/cataloguemodel/",
    "replica": "/admin/fleet/replica/1/change/",
    "usage": "/usage/",
    "keys": "/usage/keys",
    "accounts": "/usage/accounts",
    "audit": "/usage/audit",
}
MEMBERS_PAGES = {
    "playground": "/playground/",
    "usage": "/usage/?by=model",
    "keys": "/usage/keys",
}
BRIGHTNESS = """
    const rgb = getComputedStyle(document.querySelector(arguments[0])).backgroundColor;
    const canvas = document.createElement("canvas").getContext("2d");
    canvas.fillStyle = rgb;
    canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue] = canvas.getImageData(0, 0, 1, 1).data;
    return (red + green + blue) / 3;
"""


@pytest.mark.parametrize("view", [DESKTOP, DARK_PHONE], ids=lambda view: view.name)
def test_an_operators_pages_are_whole(browser: Browser, view: View) -> None:
    assert looked_at(browser, view, OPERATOR, OPERATORS_PAGES) == []


@pytest.mark.parametrize("view", [DARK_DESKTOP, PHONE], ids=lambda view: view.name)
def test_a_members_pages_are_whole(browser: Browser, view: View) -> None:
    assert looked_at(browser, view, MEMBER, MEMBERS_PAGES) == []


def looked_at(browser: Browser, view: View, who: str, pages: dict[str, str]) -> list[str]:
    """What is wrong with any of them; each is photographed."""
    browser.start_anew(view)
    browser.open("/login/")
    browser.photograph(f"login-{view.name}")
    problems = browser.check()
    browser.log_in(who, PASSWORD)
    for name, path in pages.items():
        browser.open(path)
        browser.wait(lambda: drawn(browser), f"the charts of {path} are drawn")
        problems += browser.check()
        if (browser.run(BRIGHTNESS, "body") < 128) != view.is_dark:
            problems.append(f"{path} is not as {view.name} should be")
        browser.photograph(f"{name}-of-{who}-{view.name}")
    return problems


def drawn(browser: Browser) -> bool:
    """All of its charts have been."""
    left = "canvas[data-chart]:not([data-drawn])"
    return bool(browser.run("return !document.querySelector(arguments[0])", left))


def test_a_model_is_loaded_by_keyboard_and_shows_its_progress(
    browser: Browser, pages_server: PagesServer
) -> None:
    browser.open("/")
    browser.wait_for_path("/login/")
    browser.tab_to("id_username")
    browser.press(OPERATOR, Keys.TAB, PASSWORD, Keys.ENTER)
    browser.wait_for_path("/admin/")
    browser.wait_for_text("attic is away")
    browser.tab_to("load-big")
    browser.press(Keys.ENTER)
    browser.wait_for_text("Loading big on beast")
    browser.wait_for_text("load on beast: waiting for the neuron")
    pages_server.write(
        "UPDATE fleet_loadjob SET status = 'running', stage = 'weights', progress_done = 1,"
        " progress_total = 4 WHERE model_name = 'big'"
    )
    browser.wait_for_text("load on beast: weights 25%")
    bar = browser.find('[role="progressbar"]')
    assert bar.get_attribute("aria-valuenow") == "25"
    assert browser.run("return document.activeElement.id") == "load-big"
    assert browser.check() == []
    browser.photograph("dashboard-while-loading")


def test_a_member_makes_a_key_and_revokes_it(browser: Browser) -> None:
    browser.log_in(MEMBER, PASSWORD)
    browser.wait_for_path("/playground/")
    browser.open("/usage/keys")
    browser.find("#id_name").send_keys("my laptop")
    browser.find("#id_cap").send_keys("2.50", Keys.ENTER)
    key = browser.find("#api-key").text
    assert key.startswith("hx-")
    browser.open("/usage/keys")
    browser.wait_for_text("my laptop")
    assert key not in browser.text
    prefix = key.rpartition("-")[0]
    browser.find(f'[aria-label="Revoke {prefix}"]').send_keys(Keys.ENTER)
    browser.wait_for_text("revoked")
    assert browser.check() == []
