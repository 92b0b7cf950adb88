"""Requests that have ended, to be recorded."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from metering.ledger.entries import Outcome, Settle, outcome_of
from metering.request_records import rows
from metering.request_records.captures import Captured
from tests.metering.operations import settle


@dataclass(frozen=True, kw_only=True)
class Ended:
    settle: Settle = field(default_factory=lambda: settle(uuid.uuid4().hex))
    status: int = 200
    error_message: str = ""
    model_asked: str = "gpt-4o"
    end_user: str = ""
    queue_ms: int | None = 20
    captured: Captured | None = None
    is_billed: bool = False
    is_usage_estimated: bool = False
    targets_tried: tuple[str, ...] = ()

    @property
    def kind(self) -> Outcome:
        return outcome_of(
            code=self.settle.outcome,
            error_status=self.status if self.status >= 400 else 0,
            is_placed=bool(self.settle.neuron),
        )


def ended(request_id: str = "", **changes: Any) -> Ended:
    """``changes`` are of ``Ended`` or of its ``Settle``."""
    own = {name: changes.pop(name) for name in tuple(changes) if name in Ended.__dataclass_fields__}
    return Ended(settle=settle(request_id or uuid.uuid4().hex, **changes), **own)


def record(**changes: Any) -> str:
    """Stores a request that has just ended; returns its id."""
    request_id = changes.pop("request_id", "") or uuid.uuid4().hex
    rows.insert([ended(request_id, **{"ended_unix_s": time.time(), **changes})])
    return str(request_id)
