"""The page of requests in a browser: what ends while one looks at it appears by itself."""

from __future__ import annotations

import pytest

from inference.request_ids import new_request_id
from tests.browser.chromium import Browser
from tests.browser.seed import OPERATOR, PASSWORD
from tests.browser.server import PagesServer

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(600)]

COPIED = "metering_requestrecord"


def end_a_request(server: PagesServer) -> str:
    """A copy of the newest one that ends now. Returns its id."""
    request_id = new_request_id()
    own = {"request_id": f"'{request_id}'", "at": "datetime('now')", "model_asked": "'just-now'"}
    columns = [column for column in server.columns(COPIED) if column != "id"]
    values = ", ".join(own.get(column, f'"{column}"') for column in columns)
    names = ", ".join(f'"{column}"' for column in columns)
    server.write(
        f"INSERT INTO {COPIED} ({names}) SELECT {values} FROM {COPIED} ORDER BY at DESC LIMIT 1"
    )
    return request_id


def test_the_newest_appear_by_themselves(browser: Browser, pages_server: PagesServer) -> None:
    browser.log_in(OPERATOR, PASSWORD)
    browser.wait_for_path("/admin/")
    browser.open("/requests/")
    browser.run("window.isSamePage = true")
    try:
        request_id = end_a_request(pages_server)
        browser.wait_for_text(request_id[:12])
        assert browser.run("return window.isSamePage"), "the page has not been loaded again"
        browser.follow(request_id[:12])
        browser.wait_for_path(f"/requests/{request_id}")
        browser.wait_for_text("just-now")
        assert request_id in browser.text
        assert browser.check() == []
    finally:
        pages_server.write(f"DELETE FROM {COPIED} WHERE model_asked = 'just-now'")
