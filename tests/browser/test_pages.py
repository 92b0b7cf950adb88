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
from tests.browser.pages import Who, pages_not_for, pages_of
from tests.browser.seed import MEMBER, OPERATOR, PASSWORD
from tests.browser.server import PagesServer

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]

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
    document.activeElement.blur();
    still.remove();
    return unseen;
"""


FOCUS_THE_FIRST = """
    const stops = [...document.querySelectorAll("a[href], button, input:not([type=hidden])")];
    stops.find((one) => one.checkVisibility() && !one.disabled)?.focus();
"""
"""From the last one a tab would lead out of the page."""
ANSWERS = """
    const statuses = [];
    for (const path of arguments[0]) {
        const answer = await fetch(path, {redirect: "manual"});
        statuses.push(answer.type === "opaqueredirect" ? 302 : answer.status);
    }
    return statuses;
"""
TURNED_AWAY = (302, 403, 404)


@pytest.mark.parametrize(
    ("who", "views"),
    [
        (Who.OPERATOR, (DESKTOP, DARK_PHONE)),
        (Who.MEMBER, (DARK_DESKTOP, PHONE)),
        (Who.STRANGER, (DARK_DESKTOP, PHONE)),
    ],
    ids=lambda value: value.name.lower() if isinstance(value, Who) else "",
)
def test_every_page_is_whole(
    browser: Browser, pages_server: PagesServer, who: Who, views: tuple[View, ...]
) -> None:
    """Each is loaded once and looked at in both views, and what it has to focus is focused."""
    browser.start_anew(views[0])
    if who:
        browser.log_in(who, PASSWORD)
    problems = []
    for name, page in pages_of(who):
        path = page.path_with(pages_server.first_key)
        browser.open(path)
        problems += [
            problem
            for view in views
            for problem in looked_at(browser, view, path, f"{name}-of-{who or 'nobody'}")
        ]
    assert problems == []


@pytest.mark.parametrize("who", list(Who), ids=lambda who: who.name.lower())
def test_pages_of_others_turn_one_away(
    browser: Browser, pages_server: PagesServer, who: Who
) -> None:
    browser.start_anew(DESKTOP)
    if who:
        browser.log_in(who, PASSWORD)
    else:
        browser.open("/login/")
    paths = [page.path_with(pages_server.first_key) for page in pages_not_for(who)]
    statuses = browser.run(ANSWERS, paths)
    assert [
        (path, status)
        for path, status in zip(paths, statuses, strict=True)
        if status not in TURNED_AWAY
    ] == []


def test_a_stranger_is_led_to_the_log_in(browser: Browser) -> None:
    for path in ("/", "/admin/", "/playground/", "/usage/", "/usage/audit"):
        browser.open(path)
        browser.wait_for_path("/admin/login/" if path == "/admin/" else "/login/")


def looked_at(browser: Browser, view: View, path: str, name: str) -> list[str]:
    """What is wrong with the page that is open; it is photographed."""
    browser.look_as(view)
    browser.wait(lambda: drawn(browser), f"the charts of {path} are drawn")
    browser.wait(lambda: is_dark(browser) == view.is_dark, f"{path} is as {view.name} should be")
    browser.photograph(f"{name}-{view.name}")
    problems = browser.check()
    browser.run(FOCUS_THE_FIRST)
    browser.press(Keys.TAB)  # from now on the browser shows where the focus is
    unseen = browser.run(FOCUSED_UNSEEN)
    return problems + [f"{path}, {view.name}: {one}" for one in unseen]


def is_dark(browser: Browser) -> bool:
    return bool(browser.run(BRIGHTNESS, "body") < 128)


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
