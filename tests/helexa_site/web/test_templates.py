"""Django reads a tag only where it ends on its own line; any other is printed as text."""

from __future__ import annotations

import re
from pathlib import Path

from django.conf import settings

OPEN_TAG = re.compile(r"\{([{%])(?!.*[%}]\})")


def test_every_tag_of_a_template_ends_on_its_line() -> None:
    templates = sorted(Path(settings.BASE_DIR).glob("templates/**/*.html"))
    assert templates
    broken = [
        f"{template.name}:{number}"
        for template in templates
        for number, line in enumerate(template.read_text().splitlines(), start=1)
        if OPEN_TAG.search(line)
    ]
    assert broken == []
