"""docs/api.md has the fields that the parsers declare and every error code."""

from __future__ import annotations

import re

from inference.wire import errors
from inference.wire.common.failures import FAILURES
from inference.wire.documentation import PAGE, page_with_tables

ROW = re.compile(r"^\| (?P<statuses>\d{3}(?:, \d{3})*) \| (?P<codes>[^|]+) \|", re.MULTILINE)
SECTION = re.compile(r"^### Error codes\n(.*?)^### ", re.MULTILINE | re.DOTALL)


def test_the_page_is_what_the_parsers_declare() -> None:
    page = PAGE.read_text()
    assert page == page_with_tables(page), "run: python -m inference.wire.documentation"


def listed_codes() -> set[tuple[int, str]]:
    """Status and code of each error in the page's table."""
    section = SECTION.search(PAGE.read_text())
    assert section is not None
    return {
        (int(status), code)
        for row in ROW.finditer(section[1])
        for status in row["statuses"].split(", ")
        for code in re.findall(r"`(\w+)`", row["codes"])
    }


def test_the_table_of_errors_has_every_code_with_its_status() -> None:
    raised = {
        (each.status, each.code)
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, errors.ApiError) and "code" in vars(each)
    }
    raised |= {(kind.status, code) for code, kind in FAILURES.items()}
    assert len(raised) > 60
    assert raised - listed_codes() == set()
