"""docs/api.md has every error code."""

from __future__ import annotations

import re
from pathlib import Path

from inference.wire import errors
from inference.wire.common.failures import FAILURES

PAGE = Path(__file__).parents[3] / "docs" / "api.md"
ROW = re.compile(r"^\| (?P<statuses>\d{3}(?:, \d{3})*) \| (?P<codes>[^|]+) \|", re.MULTILINE)
SECTION = re.compile(r"^### Error codes\n(.*?)^### ", re.MULTILINE | re.DOTALL)


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
