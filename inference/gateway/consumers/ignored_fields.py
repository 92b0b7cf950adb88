"""The header that names ignored fields of a request, where the operator wants that. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

HEADER = b"x-helexa-ignored"
MAX_NAMED = 32
MAX_NAME_CHARS = 128
SHOWN_AS_THEY_ARE = "[]"


def ignored_headers(paths: Sequence[str]) -> list[tuple[bytes, bytes]]:
    """Names are the client's own text: what a header cannot carry is percent-encoded, and of many
    the last is a count of the others."""
    if not paths:
        return []
    named = [
        quote(path[:MAX_NAME_CHARS], safe=SHOWN_AS_THEY_ARE, errors="replace")
        for path in paths[:MAX_NAMED]
    ]
    if len(paths) > MAX_NAMED:
        named.append(f"and {len(paths) - MAX_NAMED} more")
    return [(HEADER, ", ".join(named).encode("ascii"))]
