"""Names of ours for the ids of a models.toml, which are ``org/name``. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping


def name_of_id(given: str) -> str:
    """``Qwen/Qwen3.6-27B`` is ``qwen3.6-27b``: our names are slugs."""
    return _slug(given.rpartition("/")[2])


def free_name(given: str, *taken: Mapping[str, object]) -> str:
    """The name of an id beside other models and aliases: of two repositories of one base name the
    second keeps its organisation. ``taken``: names with the ids that they stand for."""
    name = name_of_id(given)
    is_free = all(owners.get(name, given) == given for owners in taken)
    return name if is_free else _slug(given)


def _slug(text: str) -> str:
    slug = re.sub(r"[^a-z0-9]*[^a-z0-9._-][^a-z0-9]*|[._-]{2,}", "-", text.lower())
    return slug.strip("._-")
