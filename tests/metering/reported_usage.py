"""A request of a gateway that died, and what its neuron reports of it."""

from __future__ import annotations

from typing import Any

import redis

from inference.protocol.events import Usage
from inference.protocol.keys import NEURONS, usage_key
from inference.protocol.usage_reports import (
    USAGE_REPORT_FIELD,
    UsageReport,
    encode_usage_report,
)
from metering.ledger import settlement, store
from metering.ledger.receipts import Receipt, Receipts
from metering.models import Budget
from tests.metering.operations import make_budget, reserve

NOW_UNIX_S = 1_800_000_000.0
RECEIPTS = Receipts("of a test")


def receipt(request_id: str = "r1", **changes: Any) -> Receipt:
    values: dict[str, Any] = {
        "request_id": request_id,
        "gateway_id": "g1",
        "neuron": "beast",
        "sealed_unix_s": NOW_UNIX_S - 4,
        "account": "lab",
        "key": "hx-1",
        "model": "tiny",
        "endpoint": "/v1/chat/completions",
        "client": "curl",
        "input_micro_usd": 1_000_000,
        "cached_input_micro_usd": 0,
        "output_micro_usd": 2_000_000,
        "max_prompt_tokens": 200,
        "max_output_tokens": 100,
    }
    return Receipt(**values | changes)


def report(request_id: str = "r1", *, sealed: bytes | None = None, **changes: Any) -> UsageReport:
    values: dict[str, Any] = {
        "usage": Usage(prompt_tokens=40, completion_tokens=30),
        "outcome": "cancelled",
        "started_unix_s": NOW_UNIX_S - 3,
        "ended_unix_s": NOW_UNIX_S - 1,
        "time_to_first_token_s": 0.25,
    }
    sealed = RECEIPTS.seal(receipt(request_id)) if sealed is None else sealed
    return UsageReport(receipt=sealed, **values | changes)


def publish(client: redis.Redis, *reports: UsageReport, neuron: str = "beast") -> None:
    client.zadd(NEURONS, {neuron: 1.0})
    for each in reports:
        client.xadd(usage_key(neuron), {USAGE_REPORT_FIELD: encode_usage_report(each)})


def settle_all(client: redis.Redis) -> int:
    return settlement.usage_reports_settle(client=client, receipts=RECEIPTS, now_unix_s=NOW_UNIX_S)


def amounts(budget_id: int) -> tuple[int, int]:
    """The spent and the reserved amount."""
    budget = Budget.objects.get(id=budget_id)
    return budget.spent, budget.reserved


def hold(request_id: str = "r1", **changes: Any) -> int:
    """A budget with a reservation of 300 tokens on it."""
    id = make_budget("default")
    store.apply([reserve(request_id, budgets=(id,), **changes)])
    assert amounts(id) == (0, 300)
    return id
