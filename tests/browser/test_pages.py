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

BENCH_PAGES = {
    "bench": "/bench/",
    "bench-trends": "/bench/trends/?model=tiny&scenario=chat:128",
    "bench-concurrency": "/bench/concurrency/",
    "bench-compare": "/bench/compare/?before=beast@b2&after=beast@b3",
    "bench-runs": "/bench/runs/?ok=false",
    "bench-run": "/bench/runs/1/",
}
OPERATORS_PAGES = {
    "dashboard": "/admin/",
    "catalogue": "/admin/fleet/cataloguemodel/",
    "add-a-model": "/admin/fleet/cataloguemodel/add/",
    "add-a-user": "/admin/auth/user/add/",
    "replica": "/admin/fleet/replica/1/change/",
    "playground": "/playground/",
    "usage": "/usage/",
    "keys": "/usage/keys",
    "accounts": "/usage/accounts",
    "audit": "/usage/audit",
    **BENCH_PAGES,
}
MEMBERS_PAGES = {
    "playground": "/playground/",
    "usage": "/usage/?by=model",
    "keys": "/usage/keys",
    "bench": "/bench/",
}
STRANGERS_PAGES = {"login": "/login/", "api-reference": "/docs", **BENCH_PAGES}
"""The bench is open to all here, as an operator may set it."""
STRANGER = ""
BRIGHTNESS = """
    const rgb = getComputedStyle(document.querySelector(arguments[0])).backgroundColor;
    const canvas = document.createElement("canvas").getContext("2d");
    canvas.fillStyle = rgb;
    canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue] = canvas.getImageData(0, 0, 1, 1).data;
    return (red + green + blue) / 3;
"""
FOCUSED_UNSEEN = """
    const still = document.createElement("style");
    still.textContent = "* { transition: none !important }";
    document.head.append(still);
    const look = (element) => {
        const style = getComputedStyle(element);
        const ring = style.outlineStyle === "none" ? "" : style.outlineWidth + style.outlineColor;
        return [ring, style.boxShadow, style.borderColor, style.backgroundColor].join();
    };
    const fields = "input:not([type=hidden]), select, textarea";
    const stops = `a[href], button, ${fields}, summary, [tabindex="0"]`;
    const unseen = [];
    for (const one of document.querySelectorAll(stops)) {
        if (!one.checkVisibility() || one.disabled || one.tabIndex < 0) continue;
        one.blur();
        const before = look(one);
        one.focus();
        if (document.activeElement === one && look(one) === before) {
            unseen.push(one.outerHTML.slice(0, 120));
        }
    }
    return unseen;
"""


@pytest.mark.parametrize("view", [DESKTOP, DARK_PHONE], ids=lambda view: view.name)
def test_an_operators_pages_are_whole(browser: Browser, view: View) -> None:
    assert looked_at(browser, view, OPERATOR, OPERATORS_PAGES) == []


@pytest.mark.parametrize("view", [DARK_DESKTOP, PHONE], ids=lambda view: view.name)
def test_a_members_pages_are_whole(browser: Browser, view: View) -> None:
    assert looked_at(browser, view, MEMBER, MEMBERS_PAGES) == []


@pytest.mark.parametrize("view", [DARK_DESKTOP, PHONE], ids=lambda view: view.name)
def test_a_strangers_pages_are_whole(browser: Browser, view: View) -> None:
    assert looked_at(browser, view, STRANGER, STRANGERS_PAGES) == []
    for path in ("/admin/", "/playground/", "/usage/", "/usage/audit"):
        browser.open(path)
        browser.wait_for_path("/admin/login/" if path == "/admin/" else "/login/")


@pytest.mark.parametrize("view", [DESKTOP, DARK_DESKTOP], ids=lambda view: view.name)
def test_the_focus_is_seen_wherever_the_keyboard_leads(browser: Browser, view: View) -> None:
    browser.start_anew(view)
    unseen = focused_unseen(browser, {"login": "/login/"})
    browser.log_in(OPERATOR, PASSWORD)
    assert unseen + focused_unseen(browser, OPERATORS_PAGES) == []


def focused_unseen(browser: Browser, pages: dict[str, str]) -> list[str]:
    found = []
    for path in pages.values():
        browser.open(path)
        browser.wait(lambda: drawn(browser), f"the charts of {path} are drawn")
        browser.press(Keys.TAB)  # from now on the browser shows where the focus is
        found += [f"{path}: {one}" for one in browser.run(FOCUSED_UNSEEN)]
    return found


def looked_at(browser: Browser, view: View, who: str, pages: dict[str, str]) -> list[str]:
    """What is wrong with any of them; each is photographed."""
    browser.start_anew(view)
    browser.open("/login/")
    browser.photograph(f"login-{view.name}")
    problems = browser.check()
    if who:
        browser.log_in(who, PASSWORD)
    for name, path in pages.items():
        browser.open(path)
        browser.wait(lambda: drawn(browser), f"the charts of {path} are drawn")
        problems += browser.check()
        if (browser.run(BRIGHTNESS, "body") < 128) != view.is_dark:
            problems.append(f"{path} is not as {view.name} should be")
        browser.photograph(f"{name}-of-{who or 'nobody'}-{view.name}")
    return problems


def drawn(browser: Browser) -> bool:
    """All of its charts have been."""
    left = "canvas:not([data-drawn])"
    return bool(browser.run("return !document.querySelector(arguments[0])", left))


def test_the_playground_offers_models_that_nobody_has_loaded(browser: Browser) -> None:
    """What they can do is not known yet."""
    browser.log_in(MEMBER, PASSWORD)
    browser.wait_for_path("/playground/")
    browser.wait_for_text("big (")
    browser.wait_for_text("Ask the model something")
    assert browser.run("return document.querySelector('[role=alert]').checkVisibility()") is False


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
