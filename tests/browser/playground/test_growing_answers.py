"""A long answer that grows: the page draws only its new part."""

from __future__ import annotations

import pytest

from tests.browser.chromium import Browser

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]

GROWN = """
    const [text, ...pieces] = arguments;
    const page = Alpine.$data(document.querySelector(".pg-page"));
    page.turns = [{role: "assistant", model: "", text, calls: [], isRunning: true}];
    const [turn] = page.turns;
    const settled = async () => {
        await Alpine.nextTick();
        await new Promise((resolve) => setTimeout(resolve, 0));
    };
    const blocks = () => [...document.querySelectorAll(".pg-answer .pg-block")];
    const place = (node) => {
        const element = node.nodeType === Node.TEXT_NODE ? node.parentElement : node;
        return blocks().indexOf(element?.closest(".pg-block"));
    };
    return (async () => {
        await settled();
        let places = [];
        const watch = new MutationObserver((found) => {
            places.push(...found.map(({target}) => place(target)));
        });
        watch.observe(document.querySelector(".pg-turns"), {
            subtree: true, childList: true, characterData: true, attributes: true,
        });
        const changes = [];
        for (const piece of pieces) {
            places = [];
            turn.text += piece;
            await settled();
            changes.push(places);
        }
        return [changes, blocks().map((one) => one.innerText)];
    })();
"""
"""Appends the pieces to an answer. Returns, for each piece, the places of the blocks in which a
node changed, once for each change, and the blocks' texts. -1 stands for nodes outside of
blocks."""
EARLIER = """## Heading

A *word* and `code`.

- one
- one

```python
x = 1
```

"""


def grown(browser: Browser, text: str, *pieces: str) -> tuple[list[list[int]], list[str]]:
    changes, texts = browser.run(GROWN, text, *pieces)
    return changes, texts


def test_a_piece_changes_the_last_block_alone(browser: Browser) -> None:
    """Also where other blocks have the same text."""
    changes, texts = grown(browser, EARLIER * 4 + "The", " sun", " **is", "** out")
    last = len(texts) - 1
    assert (last, texts[last]) == (20, "The sun is out")
    assert [{*places} for places in changes] == [{last}] * 3


def test_a_line_of_code_leaves_the_lines_above(browser: Browser) -> None:
    line = "def f(x): return x + 1\n"
    (few,), _ = grown(browser, "```python\n" + line * 2, line)
    (many,), texts = grown(browser, "```python\n" + line * 40, line)
    assert texts[0].count("return") == 41
    assert 0 < len(many) == len(few)
