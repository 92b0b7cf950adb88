"""docs/models.md names everything that can be loaded."""

from __future__ import annotations

import re
from pathlib import Path

from inference.models.families.gguf_types import GGUF_TYPES
from inference.models.families.registry import FAMILIES
from inference.models.families.tower_gguf import PROJECTOR_TYPES
from inference.models.families.transformers_modules import (
    MODULES,
    TRANSFORMERS_CACHED,
    TRANSFORMERS_PAGED,
)

PAGE = Path(__file__).parents[4] / "docs" / "models.md"


def test_the_page_names_every_type_of_model_and_file() -> None:
    page = PAGE.read_text()
    names = {*PROJECTOR_TYPES, *MODULES}
    names |= {*TRANSFORMERS_PAGED.model_types, *TRANSFORMERS_CACHED.model_types}
    for family in FAMILIES:
        names |= {*family.model_types, *family.gguf_architectures, *family.gguf_shared}
    assert names - set(re.findall(r"`([^`\n]+)`", page)) == set()
    assert {type.name for type in GGUF_TYPES} - set(re.findall(r"\w+", page)) == set()
