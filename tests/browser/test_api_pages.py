"""The pages of the APIs are searched in the browser."""

from __future__ import annotations

import pytest

from tests.browser.chromium import Browser
from tests.browser.seed import OPERATOR, PASSWORD

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(900)]

SECTIONS = """
    return [...document.querySelectorAll("section[id] h2")]
        .filter((one) => one.checkVisibility()).map((one) => one.innerText);
"""
HAVE_IT = {"POST /v1/chat/completions"}
"""Of ``EVERY``, those with the field that is searched for."""
EVERY = HAVE_IT | {"POST /v1/embeddings"}
TAGS = """
    return [...document.querySelectorAll("#swagger-ui .opblock-tag")]
        .filter((one) => one.checkVisibility()).map((one) => one.dataset.tag);
"""


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


def test_the_fleets_api_is_searched_and_has_examples(browser: Browser) -> None:
    browser.log_in(OPERATOR, PASSWORD)
    browser.wait_for_path("/admin/")
    browser.open("/api/docs")
    browser.find("#swagger-ui .opblock")
    browser.wait(lambda: {"upstreams", "accounts"} <= set(browser.run(TAGS)), "the tags")
    browser.add("#swagger-ui .operation-filter-input", "upstr")
    browser.wait(lambda: browser.run(TAGS) == ["upstreams"], "the tag that has it")
    browser.wait_for_text("curl http")
    browser.wait_for_text("/api/overview")
    assert browser.check() == []
    browser.click('a[href="/admin/"]')
    browser.wait_for_path("/admin/")
