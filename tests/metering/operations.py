"""Operations and budgets, with values for what a test does not care about."""

from __future__ import annotations

from typing import Any

from metering.ledger.book import Book, BudgetState, Unit
from metering.ledger.entries import Narrow, Release, Reserve, Settle
from metering.models import Account, Budget

NOON_UNIX_S = 1_800_014_400.0
"""Noon of 15 January 2027, UTC."""


def state(**changes: Any) -> BudgetState:
    values: dict[str, Any] = {"id": 1, "owner": "key", "unit": Unit.TOKENS, "cap": 1000}
    return BudgetState(**values | changes)


def book(*budgets: BudgetState) -> Book:
    return Book({budget.id: budget for budget in budgets}, {})


def reserve(request_id: str = "r1", **changes: Any) -> Reserve:
    values: dict[str, Any] = {
        "request_id": request_id,
        "gateway_id": "g1",
        "account": "lab",
        "key": "hx-1",
        "budgets": (1,),
        "prompt_tokens": 100,
        "output_tokens": None,
        "default_output_tokens": 200,
        "now_unix_s": NOON_UNIX_S,
    }
    return Reserve(**values | changes)


def narrow(request_id: str = "r1", **changes: Any) -> Narrow:
    values: dict[str, Any] = {"budgets": (1,), "prompt_tokens": 50, "output_tokens": 200}
    return Narrow(request_id=request_id, **values | changes)


def settle(request_id: str = "r1", **changes: Any) -> Settle:
    values: dict[str, Any] = {
        "request_id": request_id,
        "account": "lab",
        "key": "hx-1",
        "budgets": (1,),
        "model": "tiny",
        "neuron": "beast",
        "endpoint": "/v1/chat/completions",
        "prompt_tokens": 40,
        "cached_tokens": 10,
        "completion_tokens": 30,
        "reasoning_tokens": 5,
        "ended_unix_s": NOON_UNIX_S,
        "duration_ms": 1500,
        "time_to_first_token_ms": 120,
        "outcome": "finished",
        "client": "curl",
    }
    return Settle(**values | changes)


def release(request_id: str = "r1", budgets: tuple[int, ...] = (1,)) -> Release:
    return Release(request_id=request_id, budgets=budgets)


def make_budget(using: str, **changes: Any) -> int:
    """Stores a budget on the account ``lab``; its id."""
    Account.objects.using(using).get_or_create(name="lab")
    values: dict[str, Any] = {"account_id": "lab", "unit": "tokens", "cap": 1000}
    return Budget.objects.using(using).create(**values | changes).id
