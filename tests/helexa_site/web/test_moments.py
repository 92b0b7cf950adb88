"""Pages print times in one format, with its zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

from django.conf import settings
from django.template import Context, Template
from django.utils.formats import localize

from helexa_site.web.moments import moment_text
from tests.cases import each_case

NOON = datetime(2026, 1, 31, 12, 0, 5, tzinfo=UTC)
WORDS = "2026-01-31 12:00:05 UTC"
FORMATTING = re.compile(r"""\|(?:date|time|timesince|timeuntil)\b(?!:["']Y-m-d["'])""")


@each_case(
    ("moment", "words"),
    [(NOON, WORDS), (NOON.astimezone(timezone(timedelta(hours=2))), WORDS), (None, "")],
)
def test_a_moment_in_words(moment: datetime | None, words: str) -> None:
    assert moment_text(moment) == words
    assert Template("{{ at|moment }}").render(Context({"at": moment})) == words


def test_the_admins_own_columns_and_forms_have_the_same_format() -> None:
    assert localize(NOON) == WORDS
    assert localize(NOON.date()) == "2026-01-31"


def test_no_template_has_a_format_of_its_own() -> None:
    templates = sorted(Path(settings.BASE_DIR).glob("templates/**/*.html"))
    assert templates
    assert [one.name for one in templates if FORMATTING.search(one.read_text())] == []
