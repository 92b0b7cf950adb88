"""The page follows an answer that grows, however its pieces come, until the reader scrolls up.
The tests write the answers' streams themselves, in the page."""

from __future__ import annotations

import pytest
from selenium.webdriver.common.keys import Keys

from tests.browser.chromium import Browser

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]

HOLD_STREAMS = """
    const asked = window.fetch;
    window.fetch = async (url, ...options) => {
        if (!String(url).includes("/v1/chat/completions")) return asked(url, ...options);
        return new Response(new ReadableStream({start: (stream) => { window.stream = stream; }}));
    };
    addEventListener("scrollend", () => { window.hasScrolled = true; });
"""
PLACE = """
    const turns = document.querySelector(".pg-turns");
    const composer = document.querySelector(".pg-ask");
    const place = () => [
        turns.getBoundingClientRect().bottom - composer.getBoundingClientRect().top, scrollY,
    ];
"""
WRITE = (
    PLACE
    + """
    const [deltas, isEnd] = arguments;
    const send = (data) => window.stream.enqueue(new TextEncoder().encode(`data: ${data}\\n\\n`));
    const isOffered = (one) => one.innerText === "Regenerate" && one.checkVisibility();
    const isGrowing = (part) => part === part.parentElement.lastElementChild;
    const isRendered = () => [...turns.querySelectorAll(".pg-part.pg-text")].every(isGrowing);
    const until = async (isThere) => {
        while (!isThere() || !isRendered()) await new Promise((resolve) => setTimeout(resolve));
        return place();
    };
    return (async () => {
        const places = [];
        for (const delta of deltas) {
            send(JSON.stringify({choices: [{delta}]}));
            const last = delta.content.trim().split("\\n").at(-1);
            places.push(await until(() => turns.innerText.includes(last)));
        }
        if (!isEnd) return places;
        send("[DONE]");
        window.stream.close();
        places.push(await until(() => [...turns.querySelectorAll("button")].some(isOffered)));
        return places;
    })();
"""
)
IMAGE = """
    const canvas = Object.assign(document.createElement("canvas"), {width: 60, height: 60});
    Alpine.$data(document.querySelector(".pg-page")).images.push(canvas.toDataURL());
"""
MANY_ROWS = "".join(f"\n\none of many rows {number}" for number in range(60))
"""Longer than the window."""


def write(browser: Browser, *deltas: str | dict[str, str], is_end: bool = False) -> list[list[int]]:
    """Writes the answer's pieces, and its end, each once the page has drawn what came before it.
    Returns after each how far the talk's end lies below the composer and how far the page is
    scrolled down, in pixels."""
    pieces = [{"content": one} if isinstance(one, str) else one for one in deltas]
    return list(browser.run(WRITE, pieces, is_end))


def place(browser: Browser) -> tuple[float, float]:
    below, y = browser.run(f"{PLACE} return place();")
    return below, y


def asked(browser: Browser, words: str) -> None:
    browser.run("window.stream = null")
    browser.type('[name="draft"]', words, Keys.ENTER)
    browser.wait(lambda: browser.run("return Boolean(window.stream)"), "the request")


def test_an_answer_is_followed_until_the_reader_scrolls_up(browser: Browser) -> None:
    """To the buttons below it, also where many rows come at once and the end of the stream comes by
    itself. Who turns the wheel back to the end is followed again."""
    browser.run(HOLD_STREAMS)
    asked(browser, "a long story, please")
    places = write(browser, MANY_ROWS, "\n\nthe last row", is_end=True)
    assert places[-1][1] > 1000, "the answer is longer than the window"
    assert max(below for below, _ in places) < 1
    # A composer that grows covers no answer.
    height = "return document.querySelector('.pg-ask').clientHeight"
    before = browser.run(height)
    browser.run(IMAGE)
    browser.wait(lambda: browser.run(height) > before + 50, "the image is shown")
    browser.wait(lambda: place(browser)[0] < 1, "the end of the answer is in sight")

    asked(browser, "and another one")
    write(browser, MANY_ROWS.replace("many", "more"))
    browser.turn_wheel(-400)
    browser.wait(lambda: place(browser)[0] > 300, "the rows above")
    ((below, _),) = write(browser, "\n\na row below")
    assert below > 300
    browser.wait(lambda: browser.run("return window.hasScrolled"), "the wheel has come to rest")
    browser.run("window.hasScrolled = false")
    browser.turn_wheel(5000)
    browser.wait(lambda: browser.run("return window.hasScrolled"), "the wheel has come to rest")
    assert place(browser)[0] < 1
    places = write(browser, "\n\na row in sight", "\n\nits last row", is_end=True)
    assert max(below for below, _ in places) < 1


def test_what_the_reader_unfolds_stays_where_it_is(browser: Browser) -> None:
    browser.run(HOLD_STREAMS)
    asked(browser, "a long story, please")
    thoughts = "".join(f"I think of {number}.\n" for number in range(60))
    write(browser, {"reasoning_content": thoughts, "content": "Once"})
    _, before = place(browser)
    browser.click(".pg-answer .pg-thinking summary")
    browser.wait(lambda: place(browser)[0] > 500, "the thoughts")
    ((_, after),) = write(browser, " upon a time")
    assert after == before
