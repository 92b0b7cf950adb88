"""The page of supported models matches the declarations."""

from __future__ import annotations

from pathlib import Path

from inference.models.families.table import markdown

PAGE = Path(__file__).parents[4] / "docs" / "models.md"


def test_the_page_is_what_the_families_declare() -> None:
    written = PAGE.read_text()
    assert written == markdown(), "run: python -m inference.models.families.table > docs/models.md"
