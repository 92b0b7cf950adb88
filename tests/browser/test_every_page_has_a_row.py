"""The pages that are tested in a browser are those of the URL table: a new one without a row, or a
row without its page, fails. Needs no browser."""

from __future__ import annotations

from tests.browser.pages import NO_PAGES, routes, rows
from tests.browser.pictures import IMAGES_DIR, PICTURES

ALIKE = ("_delete", "_history", "_add")
"""The admin's own pages, looked at for one kind of row, or for those that are made by hand."""


def test_every_route_is_a_page_with_a_row_or_none_and_every_row_has_its_route() -> None:
    known, found = rows().keys() | NO_PAGES, set(routes())
    assert {one for one in found - known if not one.endswith(ALIKE)} == set()
    assert known - found == set()
    assert rows().keys() & NO_PAGES == set()
    assert {file.stem for file in IMAGES_DIR.glob("*.webp")} == set(PICTURES)
