"""docs/api.md says what the parsers declare."""

from __future__ import annotations

from inference.wire.documentation import PAGE, page_with_tables


def test_the_page_is_what_the_parsers_declare() -> None:
    page = PAGE.read_text()
    assert page == page_with_tables(page), "run: python -m inference.wire.documentation"
