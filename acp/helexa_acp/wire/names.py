"""Names of tools as every API takes them. Pure."""

from __future__ import annotations

import re

MAX_LENGTH = 64
NOT_ALLOWED = re.compile(r"[^A-Za-z0-9_-]")


def wire_name(name: str) -> str:
    """Letters, digits, ``_`` and ``-``, at most 64 of them, at least one."""
    return NOT_ALLOWED.sub("_", name)[:MAX_LENGTH] or "_"
