"""What stands on a model's page above its settings: state, use, failures, logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.utils import timezone

from fleet.admin.replica_report import recent_errors
from fleet.dashboard.home_context import model_context
from fleet.models import CatalogueModel
from metering import selectors as metering_selectors
from metering.requests.links import requests_url
from metering.selectors import UsageFilter, UsageGroup, UsageSums

MAX_USERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """An account that uses the model."""

    name: str
    requests: str
    tokens: str


def page_of_model(model: CatalogueModel) -> dict[str, Any]:
    """The context of ``fleet/model_page.html``."""
    return model_context(model) | {
        "users": _users(model.name),
        "failures": recent_errors(model_name=model.name),
        "requests_url": requests_url(model=model.name),
    }


def _users(name: str) -> list[User]:
    period = metering_selectors.period_of(None, None, today=timezone.now().date())
    rows = metering_selectors.usage_list(
        by=UsageGroup.ACCOUNT, period=period, where=UsageFilter(model=name)
    )
    return [
        User(name=row.name, requests=f"{row.sums.requests:,}", tokens=f"{_tokens(row.sums):,}")
        for row in rows[:MAX_USERS]
    ]


def _tokens(sums: UsageSums) -> int:
    return sums.prompt_tokens + sums.completion_tokens
