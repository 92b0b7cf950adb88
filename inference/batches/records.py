"""A batch's status, and its records for the gateway. Pure.

    validating ─▶ in_progress ─▶ completed | expired | failed
        │              └──▶ cancelling ─▶ cancelled
        └──▶ cancelled | failed

The working gateway renews the batch's lease; a dead one's expires, and another gateway claims it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

WAITING = "validating"
RUNNING = "in_progress"
CANCELLING = "cancelling"
OPEN = (WAITING, RUNNING, CANCELLING)
ENDED = ("completed", "failed", "expired", "cancelled")
STATUSES = (*OPEN, *ENDED)
DIALECTS = ("openai", "anthropic")

_ID = re.compile(r"(file-|batch_|msgbatch_)[0-9a-f]{32}")


def is_id(text: str) -> bool:
    """Ids become parts of paths."""
    return _ID.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    id: str
    account: str
    name: str
    purpose: str
    size_bytes: int
    created_at: datetime
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """``key`` is the public prefix of its creator's key. Amounts are of requests."""

    id: str
    account: str
    key: str
    dialect: str
    endpoint: str
    status: str
    input_file: str
    output_file: str
    error_file: str
    """The file exists once it has content."""
    num_total: int
    num_completed: int
    num_failed: int
    num_expired: int
    num_cancelled: int
    metadata_json: str
    failure: str
    created_at: datetime
    expires_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    cancelled_at: datetime | None = None

    @property
    def is_open(self) -> bool:
        return self.status in OPEN
