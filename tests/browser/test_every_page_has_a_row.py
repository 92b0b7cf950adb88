"""The pages that are tested in a browser are those of the URL table: a new one without a row, or a
row without its page, fails. Needs no browser."""

from __future__ import annotations

from tests.browser.pages import NO_PAGES, Who, pages_of, routes, rows
from tests.browser.pictures import IMAGES_DIR, PICTURES

DELETIONS = "_delete"
"""The admin's own page, looked at for one kind of row."""


def test_every_route_is_a_page_with_a_row_or_names_the_reason_it_is_none() -> None:
    known = set(rows()) | set(NO_PAGES)
    assert {one for one in routes() if one not in known and not one.endswith(DELETIONS)} == set()


def test_no_row_is_of_a_page_that_is_gone() -> None:
    assert (set(rows()) | set(NO_PAGES)) - set(routes()) == set()
    assert set(rows()) & set(NO_PAGES) == set()


def test_each_visitor_has_pages_with_images_of_their_own() -> None:
    for who in Who:
        names = [name for name, _ in pages_of(who)]
        assert names
        assert len(set(names)) == len(names)


def test_each_picture_of_the_documentation_is_taken_by_the_command() -> None:
    assert {file.stem for file in IMAGES_DIR.glob("*.webp")} == set(PICTURES)
