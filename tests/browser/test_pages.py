"""Every page in a real browser, for each visitor: wide and narrow, light and dark, by keyboard, and
by the rules of axe-core. This is the one place where all pages are walked."""

from __future__ import annotations

import pytest
from selenium.webdriver.common.keys import Keys

from tests.browser import chromium
from tests.browser.chromium import Browser, View
from tests.browser.pages import PASSWORD, Who, pages_of
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


FOCUS_THE_FIRST = """
    const stops = [...document.querySelectorAll("a[href], button, input:not([type=hidden])")];
    stops.find((one) => one.checkVisibility() && !one.disabled)?.focus();
"""
"""A script that focuses the first stop. From the last one a tab would lead out of the page."""


@pytest.mark.parametrize(
    ("who", "views"),
    [
        (Who.OPERATOR, (chromium.WIDE, chromium.DARK_PHONE)),
        (Who.MEMBER, (chromium.DARK_WIDE, chromium.PHONE)),
        (Who.STRANGER, (chromium.DARK_WIDE, chromium.PHONE)),
    ],
    ids=lambda value: value.name.lower() if isinstance(value, Who) else "",
)
def test_every_page_is_whole(
    browser: Browser, pages_server: PagesServer, who: Who, views: tuple[View, ...]
) -> None:
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


def looked_at(browser: Browser, view: View, path: str, name: str) -> list[str]:
    chromium.look_at(browser, view)
    browser.photograph(f"{name}-{view.name}")
    problems = browser.check() + chromium.violations(browser)
    browser.run(FOCUS_THE_FIRST)
    browser.press(Keys.TAB)  # from now on the browser shows where the focus is
    unseen = browser.run(FOCUSED_UNSEEN)
    return problems + [f"{path}, {view.name}: {one}" for one in unseen]


def test_a_model_is_loaded_by_the_keyboard(browser: Browser, pages_server: PagesServer) -> None:
    browser.open("/")
    browser.wait_for_path("/login/")
    browser.tab_to("id_username")
    browser.press(Who.OPERATOR, Keys.TAB, PASSWORD, Keys.ENTER)
    browser.wait_for_path("/admin/")
    browser.wait_for_text("attic is away")
    browser.tab_to("load-big")
    browser.press(Keys.ENTER)
    browser.wait_for_text("load on beast: waiting for the neuron")
    pages_server.write(
        "UPDATE fleet_loadjob SET status = 'running', stage = 'weights', progress_done = 1,"
        " progress_total = 4 WHERE model_name = 'big'"
    )
    browser.wait_for_text("load on beast: weights 25%")
    browser.find('[role="progressbar"][aria-valuenow="25"]')
    assert browser.run("return document.activeElement.id") == "load-big"
    assert browser.check() == []


def test_the_navigation_is_skipped_and_the_own_menu_opened_by_keyboard(browser: Browser) -> None:
    browser.log_in(Who.OPERATOR, PASSWORD)
    browser.wait_for_path("/admin/")
    browser.press(Keys.TAB)
    assert browser.run("return document.activeElement.className") == "hx-skip"
    browser.press(Keys.ENTER)
    browser.wait(lambda: browser.run("return document.activeElement.id") == "main", "skipped")
    browser.open("/admin/fleet/neuron/")
    browser.tab_to("user-menu")
    browser.press(Keys.ENTER, Keys.TAB, Keys.TAB, Keys.ENTER)
    browser.wait(lambda: chromium.is_dark(browser), "the theme is dark")
    browser.press(Keys.TAB, Keys.ENTER)
    browser.wait(lambda: not chromium.is_dark(browser), "the theme is the system's again")
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
    browser.log_in(Who.OPERATOR, PASSWORD)
    browser.wait_for_path("/admin/")
    for path, ranges in (("/admin/", ["30d"]), ("/admin/dashboard/model?name=tiny", POINTS)):
        browser.open(path)
        for word in ranges:
            browser.press_button(f"#series-range-{word}")
            browser.find(f'#series-range-{word}[aria-pressed="true"]')
            browser.wait(lambda: chromium.drawn(browser), "the charts are drawn")
            charts = browser.run(CHARTS)
            assert charts[0]["lines"] == ["answered", "cancelled", "refused", "failed"]
            for chart in charts:
                assert (chart["points"], chart["scales"]) == (POINTS[word], ["x", "y"]), chart
                assert not chart["isCrowded"] and not chart["unseen"], chart
            assert browser.run("return document.activeElement.id") == f"series-range-{word}"
    browser.open("/usage/")
    browser.wait(lambda: chromium.drawn(browser), "cost and tokens are drawn")
    found = [(one["lines"], one["scales"]) for one in browser.run(CHARTS)]
    assert found == [(["USD"], ["x", "y"]), (["tokens"], ["x", "y"])]
    assert browser.check() == []


INJECTED = """
    const script = document.createElement("script");
    script.textContent = "window.wasRun = true";
    const image = document.createElement("div");
    image.innerHTML = '<img src="/nowhere.png" onerror="window.wasRun = true">';
    const frame = document.createElement("iframe");
    frame.src = arguments[0];
    document.body.append(script, image, frame);
    return fetch(arguments[0], {mode: "no-cors"}).then(() => "sent", () => "stopped");
"""
ATTEMPTS = ("inline script", "inline event handler", "connect-src", "frame-src")
ELSEWHERE = "http://127.0.0.1:9/"


def test_what_is_injected_does_not_run(browser: Browser) -> None:
    """By the Content-Security-Policy. Pages of other origins are refused in
    ``tests/inference/gateway/server/test_paths.py``."""
    browser.log_in(Who.OPERATOR, PASSWORD)
    browser.open("/playground/")
    assert browser.run(INJECTED, ELSEWHERE) == "stopped"
    stopped: list[str] = []

    def are_all_stopped() -> bool:
        stopped.extend(one for one in browser.check() if "Content Security Policy" in one)
        return all(any(what in line for line in stopped) for what in ATTEMPTS)

    browser.wait(are_all_stopped, "each attempt is in the console")
    assert browser.run("return window.wasRun === undefined")


SECTIONS = """
    return [...document.querySelectorAll("section[id] h2")]
        .filter((one) => one.checkVisibility()).map((one) => one.innerText);
"""
HAVE_IT = {"POST /v1/chat/completions"}
"""Of ``EVERY``, those with the field that is searched for."""
EVERY = HAVE_IT | {"POST /v1/embeddings"}


def test_the_inference_api_is_searched(browser: Browser) -> None:
    browser.open("/docs")
    browser.wait(lambda: set(browser.run(SECTIONS)) >= EVERY, "all of them")
    browser.add("#search-paths", "parallel_tool_calls")
    # The sections are shown and hidden one by one, some frames after each letter.
    browser.wait(lambda: EVERY & set(browser.run(SECTIONS)) == HAVE_IT, "those that have it")
    browser.add("#search-paths", " of nobody")
    browser.wait_for_text("No path and no field has these words.")
    browser.wait(lambda: browser.run(SECTIONS) == [], "none is shown")
    assert browser.check() == []
