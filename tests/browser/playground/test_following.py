"""The page follows an answer that grows, however its pieces come, until the reader scrolls up, and
draws only its new part. The tests write the answers' streams themselves, in the page."""

from __future__ import annotations

import pytest
from selenium.webdriver.common.keys import Keys

from tests.browser.chromium import Browser
from tests.browser.playground.conftest import press

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
ROWS = [f"\n\n{name} row {number:02}" for number in range(12) for name in ("first", "second")]


def write(browser: Browser, *deltas: str | dict[str, str], is_end: bool = False) -> list[list[int]]:
    """Writes the answer's pieces, and its end, each once the page has drawn what came before it.
    Returns after each how far the talk's end lies below the composer and how far the page is
    scrolled down, in pixels."""
    pieces = [{"content": one} if isinstance(one, str) else one for one in deltas]
    return list(browser.run(WRITE, pieces, is_end))


def place(browser: Browser) -> tuple[float, float]:
    below, y = browser.run(f"{PLACE} return place();")
    return below, y


def wait_for_stream(browser: Browser) -> None:
    browser.wait(lambda: browser.run("return Boolean(window.stream)"), "the request")


@pytest.fixture
def reader(browser: Browser) -> Browser:
    browser.run(HOLD_STREAMS)
    browser.type('[name="draft"]', "a long story, please", Keys.ENTER)
    wait_for_stream(browser)
    return browser


def test_an_answer_is_followed_to_the_buttons_below_it(reader: Browser) -> None:
    """Also where many rows come at once, where the end of the stream comes by itself, and in place
    of a longer answer: the page moves up by itself then."""
    long = write(reader, MANY_ROWS, "\n\nthe last row", is_end=True)
    assert long[-1][1] > 1000, "the answer is longer than the window"
    reader.run("window.stream = null")
    press(reader, "Regenerate")
    wait_for_stream(reader)
    short = write(reader, *ROWS, is_end=True)
    assert 0 < short[-1][1] < long[-1][1]
    assert max(below for below, _ in [*long, *short]) < 1
    # A composer that grows covers no answer.
    height = "return document.querySelector('.pg-ask').clientHeight"
    before = reader.run(height)
    reader.run(IMAGE)
    reader.wait(lambda: reader.run(height) > before + 50, "the image is shown")
    reader.wait(lambda: place(reader)[0] < 1, "the end of the answer is in sight")


def test_the_reader_alone_stops_it(reader: Browser) -> None:
    """Who turns the wheel back to the end is followed again."""
    write(reader, MANY_ROWS)
    reader.turn_wheel(-400)
    reader.wait(lambda: place(reader)[0] > 300, "the rows above")
    ((below, _),) = write(reader, "\n\na row below")
    assert below > 300
    reader.wait(lambda: reader.run("return window.hasScrolled"), "the wheel has come to rest")
    reader.run("window.hasScrolled = false")
    reader.turn_wheel(5000)
    reader.wait(lambda: reader.run("return window.hasScrolled"), "the wheel has come to rest")
    assert place(reader)[0] < 1
    places = write(reader, "\n\na row in sight", "\n\nthe last row", is_end=True)
    assert max(below for below, _ in places) < 1


def test_what_the_reader_unfolds_stays_where_it_is(reader: Browser) -> None:
    thoughts = "".join(f"I think of {number}.\n" for number in range(60))
    write(reader, {"reasoning_content": thoughts, "content": "Once"})
    _, before = place(reader)
    reader.click(".pg-answer .pg-thinking summary")
    reader.wait(lambda: place(reader)[0] > 500, "the thoughts")
    ((_, after),) = write(reader, " upon a time", is_end=False)
    assert after == before


GROWN = """
    const [text, ...pieces] = arguments;
    const page = Alpine.$data(document.querySelector(".pg-page"));
    page.turns = [{role: "assistant", model: "", text, calls: [], isRunning: true}];
    const [turn] = page.turns;
    const parts = () => [...document.querySelectorAll(".pg-answer .pg-part")];
    const nodes = () => [parts()[0].firstChild, parts().at(-1).firstChild];
    const settled = async () => {
        await Alpine.nextTick();
        do await new Promise((resolve) => setTimeout(resolve, 10));
        while (parts().slice(0, -1).some((one) => one.matches(".pg-text")));
    };
    return (async () => {
        await settled();
        const before = nodes();
        for (const piece of pieces) {
            turn.text += piece;
            await settled();
        }
        const areKept = nodes().map((node, place) => node === before[place]);
        return [parts().map((one) => one.innerText), ...areKept];
    })();
"""
"""Appends the pieces to an answer. Returns its parts' texts, and whether the first part and the
last, which still grows, have the nodes they had: what is selected in them stays selected."""


def test_a_piece_changes_what_grows_alone(
    browser: Browser,
) -> None:
    """Empty lines within code end nothing."""
    earlier = "## Heading\n\n- one\n\n"
    texts, *are_kept = browser.run(GROWN, earlier + "The", " sun", " **is", "** out")
    assert texts[0].startswith("Heading") and texts[1:] == ["The sun **is** out"]
    assert are_kept == [True, True]
    line = "def f(x): return x + 1\n"
    texts, is_kept, _ = browser.run(
        GROWN, "One.\n\n```python\n" + line, "\n", line, "```\n", "\nSo"
    )
    assert texts[0] == "One." and texts[1].count("return") == 2 and texts[2] == "So"
    assert is_kept
