"""Every page in a real browser, for each visitor: wide and narrow, light and dark, by keyboard, and
by the rules of axe-core. This is the one place where all pages are walked."""

from __future__ import annotations

import pytest
from selenium.webdriver.common.keys import Keys

from tests.browser.appearance import drawn, faint_charts, is_dark, look_at, violations
from tests.browser.chromium import DARK_PHONE, DARK_WIDE, PHONE, WIDE, Browser, View
from tests.browser.pages import Who, pages_of
from tests.browser.seed import OPERATOR, PASSWORD
from tests.browser.server import PagesServer

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(1800)]

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


SPOIL = """
    const part = document.createElement("div");
    part.innerHTML = '<button></button> <p style="color: #999; background: #fff">Faint.</p>';
    document.getElementById("main").append(part);
"""
FOCUS_THE_FIRST = """
    const stops = [...document.querySelectorAll("a[href], button, input:not([type=hidden])")];
    stops.find((one) => one.checkVisibility() && !one.disabled)?.focus();
"""
"""A script that focuses the first stop. From the last one a tab would lead out of the page."""


@pytest.mark.parametrize(
    ("who", "views"),
    [
        (Who.OPERATOR, (WIDE, DARK_PHONE)),
        (Who.MEMBER, (DARK_WIDE, PHONE)),
        (Who.STRANGER, (DARK_WIDE, PHONE)),
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


def test_a_spoilt_page_breaks_rules(browser: Browser) -> None:
    browser.open("/docs")
    assert violations(browser) == []
    browser.run(SPOIL)
    rules = [one.split(": ")[1] for one in violations(browser)]
    assert sorted(rules) == ["button-name", "color-contrast"]


def looked_at(browser: Browser, view: View, path: str, name: str) -> list[str]:
    """Photographs the page that is open and returns its problems."""
    look_at(browser, view)
    browser.photograph(f"{name}-{view.name}")
    problems = browser.check() + violations(browser) + faint_charts(browser)
    browser.run(FOCUS_THE_FIRST)
    browser.press(Keys.TAB)  # from now on the browser shows where the focus is
    unseen = browser.run(FOCUSED_UNSEEN)
    return problems + [f"{path}, {view.name}: {one}" for one in unseen]


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
    browser.keep_notices()
    browser.press(Keys.ENTER)
    browser.wait_for_notice("Loading big on beast")
    browser.wait_for_text("load on beast: waiting for the neuron")
    pages_server.write(
        "UPDATE fleet_loadjob SET status = 'running', stage = 'weights', progress_done = 1,"
        " progress_total = 4 WHERE model_name = 'big'"
    )
    browser.wait_for_text("load on beast: weights 25%")
    browser.find('[role="progressbar"][aria-valuenow="25"]')
    assert browser.run("return document.activeElement.id") == "load-big"
    assert browser.check() == []
    browser.photograph("dashboard-while-loading")


def test_the_navigation_is_skipped_and_the_own_menu_opened_by_keyboard(browser: Browser) -> None:
    browser.log_in(OPERATOR, PASSWORD)
    browser.wait_for_path("/admin/")
    browser.press(Keys.TAB)
    assert browser.run("return document.activeElement.className") == "hx-skip"
    browser.press(Keys.ENTER)
    browser.wait(lambda: browser.run("return document.activeElement.id") == "main", "skipped")
    browser.open("/admin/fleet/neuron/")
    browser.tab_to("user-menu")
    browser.press(Keys.ENTER, Keys.TAB, Keys.TAB, Keys.ENTER)
    browser.wait(lambda: is_dark(browser), "the theme is dark")
    browser.press(Keys.TAB, Keys.ENTER)
    browser.wait(lambda: not is_dark(browser), "the theme is the system's again")
    browser.press(Keys.TAB, Keys.TAB, Keys.ENTER)
    browser.wait_for_path("/login/")


CHARTS = """
    const crowded = (chart) => {
        const {size, family} = Chart.defaults.font, {x} = chart.scales;
        chart.ctx.font = `${size}px ${family}`;
        const widths = x.ticks.map((tick) => chart.ctx.measureText(tick.label).width);
        const widest = Math.max(...widths);
        return x.ticks.length > 1
            && x.getPixelForTick(1) - x.getPixelForTick(0) < widest + size / 2;
    };
    const unseen = (chart, line, index) => line.data.some((one, place) => one != null
        && line.data[place - 1] == null && line.data[place + 1] == null
        && !chart.getDatasetMeta(index).data[place].options.radius);
    const canvases = document.querySelectorAll("canvas[data-series], canvas[data-chart]");
    return [...canvases].map((canvas) => {
        const chart = Chart.getChart(canvas), lines = chart.data.datasets;
        return {
            scales: Object.keys(chart.scales), points: chart.data.labels.length,
            lines: lines.map((line) => line.label), isCrowded: crowded(chart),
            unseen: lines.filter((line, index) => unseen(chart, line, index)).length,
        };
    });
"""
"""A script that returns each chart: a number without neighbours is unseen where it is no dot."""
POINTS = {"30m": 30, "24h": 96, "7d": 168, "30d": 120}


def test_charts_have_one_axis_and_a_picker_of_ranges(browser: Browser) -> None:
    """All pages draw them by the same script."""
    browser.log_in(OPERATOR, PASSWORD)
    browser.wait_for_path("/admin/")
    for path, ranges in (("/admin/", ["30d"]), ("/admin/dashboard/model?name=tiny", POINTS)):
        browser.open(path)
        for word in ranges:
            browser.press_button(f"#series-range-{word}")
            browser.find(f'#series-range-{word}[aria-pressed="true"]')
            browser.wait(lambda: drawn(browser), "the charts are drawn")
            charts = browser.run(CHARTS)
            assert charts[0]["lines"] == ["answered", "cancelled", "refused", "failed"]
            for chart in charts:
                assert (chart["points"], chart["scales"]) == (POINTS[word], ["x", "y"]), chart
                assert not chart["isCrowded"] and not chart["unseen"], chart
            assert browser.run("return document.activeElement.id") == f"series-range-{word}"
    browser.open("/usage/")
    browser.wait(lambda: drawn(browser), "cost and tokens are drawn")
    found = [(one["lines"], one["scales"]) for one in browser.run(CHARTS)]
    assert found == [(["USD"], ["x", "y"]), (["tokens"], ["x", "y"])]
    assert browser.check() == []
