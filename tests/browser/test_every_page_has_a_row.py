"""The pages that are tested in a browser are those of the URL table: a new one without a row, or a
row without its page, fails. Needs no browser."""

from __future__ import annotations

from tests.browser.pages import NO_PAGES, routes, rows
from tests.browser.pictures import IMAGES_DIR, PICTURES

ALIKE = ("_delete", "_history", "_add")
"""The admin's own pages, looked at for one kind of row, or for those that are made by hand."""


def test_every_route_is_a_page_with_a_row_or_none() -> None:
    known = rows().keys() | NO_PAGES
    assert {one for one in routes() if one not in known and not one.endswith(ALIKE)} == set()


def test_no_row_is_of_a_page_that_is_gone() -> None:
    assert (rows().keys() | NO_PAGES) - set(routes()) == set()
    assert rows().keys() & NO_PAGES == set()


def test_each_picture_of_the_documentation_is_taken_by_the_command() -> None:
    assert {file.stem for file in IMAGES_DIR.glob("*.webp")} == set(PICTURES)
