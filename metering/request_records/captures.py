"""Stores captured bodies beside the records of their requests, masked and cut.

    Capture ─▶ headers and bodies as text ─▶ secrets and data masked ─▶ cut ─▶ CapturedRequest

Called by the writer's thread. At most ``MAX_ROWS`` are kept: an insert deletes the oldest.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from django.db.models import Max

from inference.redaction import HIDDEN, Redactor, masked, secrets_of
from metering.ledger.entries import Settle
from metering.models import CapturedRequest

if TYPE_CHECKING:
    from inference.gateway.request.outcome import Capture

MAX_CHARS = 256 * 1024
MAX_ROWS = 1_000
SECRET_HEADERS = ("auth", "key", "token", "secret", "cookie", "password")
"""Parts of the names of headers whose values are not stored."""


def insert(captured: Iterable[tuple[Settle, Capture]], *, using: str) -> None:
    """A request that is stored already stays unchanged. Raises the database's error."""
    redact = Redactor(secrets_of(os.environ))
    rows = [_row(settle, one, redact) for settle, one in captured]
    stored = CapturedRequest.objects.using(using)
    stored.bulk_create(rows, ignore_conflicts=True)
    newest = stored.aggregate(id=Max("pk"))["id"] or 0
    stored.filter(pk__lte=newest - MAX_ROWS).delete()


def _row(settle: Settle, captured: Capture, redact: Redactor) -> CapturedRequest:
    return CapturedRequest(
        request_id=settle.request_id,
        at=datetime.fromtimestamp(settle.ended_unix_s, UTC),
        headers="\n".join(_header(name, value, redact) for name, value in captured.headers),
        request=_text(captured.request, captured.num_request_bytes, redact),
        answer=_text(captured.answer, captured.num_answer_bytes, redact),
        trace=_cut(_plain(masked(captured.trace, redact))),
    )


def _header(name: bytes, value: bytes, redact: Redactor) -> str:
    word = name.decode("latin-1").lower()
    if any(secret in word for secret in SECRET_HEADERS):
        return f"{word}: {HIDDEN}"
    return f"{word}: {_plain(masked(value.decode('latin-1'), redact))}"


def _text(read: bytes | bytearray, num_bytes: int, redact: Redactor) -> str:
    """``read``: the first of ``num_bytes``. Masked before it is cut, since half a key is not
    detected."""
    text = _cut(_plain(masked(read.decode("utf-8", "replace"), redact)))
    unread = num_bytes - len(read)
    return f"{text}[{unread:,} bytes left out]" if unread else text


def _cut(text: str) -> str:
    if len(text) <= MAX_CHARS:
        return text
    return f"{text[:MAX_CHARS]}[{len(text) - MAX_CHARS:,} characters left out]"


def _plain(text: str) -> str:
    return text.encode("utf-8", "replace").decode().replace("\0", "")
