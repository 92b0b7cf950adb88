"""Requests that have ended, to be recorded."""

from __future__ import annotations

import time
import uuid
from typing import Any

from inference.gateway.request.outcome import RequestOutcome
from metering import request_records
from metering.ledger.entries import outcome_of
from tests.metering.operations import settle


def ended(request_id: str = "", **changes: Any) -> RequestOutcome:
    """``changes`` are of the outcome or of its ``Settle``."""
    names = RequestOutcome.__struct_fields__
    own = {name: changes.pop(name) for name in tuple(changes) if name in names}
    made = settle(request_id or uuid.uuid4().hex, **changes)
    status = own.get("status", 200)
    kind = outcome_of(
        code=made.outcome, error_status=status if status >= 400 else 0, is_placed=bool(made.neuron)
    )
    values = {"status": status, "is_billed": False, "was_cold": False}
    facts = {"model_asked": "gpt-4o", "queue_ms": 20}
    return RequestOutcome(settle=made, kind=kind, **{**values, **facts, **own})


def pair(outcome: RequestOutcome) -> request_records.Ended:
    settle = outcome.settle if outcome.is_billed else request_records.with_record(outcome)
    return settle, outcome.captured


def insert(*outcomes: RequestOutcome, using: str = "default") -> None:
    request_records.insert([pair(one) for one in outcomes], using=using)


def record(**changes: Any) -> str:
    """Stores a request that has just ended; returns its id."""
    request_id = changes.pop("request_id", "") or uuid.uuid4().hex
    insert(ended(request_id, **{"ended_unix_s": time.time(), **changes}))
    return str(request_id)
