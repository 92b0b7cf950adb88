"""Reads of accounts, keys, budgets and usage. No writes."""

from metering.selectors.accounts import (
    account_find,
    budget_find,
    key_find,
    member_find,
    user_find,
)
from metering.selectors.budgets import (
    BudgetStatus,
    budget_status,
    budgets_by_key,
    budgets_nearly_spent,
    budgets_of,
    key_budgets,
    left_words,
    reservations_open,
)
from metering.selectors.requests import (
    RequestFilter,
    key_names,
    names_of_keys,
    request_find,
    request_is_captured,
    requests_list,
)
from metering.selectors.series import (
    SeriesPoint,
    series_devices,
    series_names,
    series_points,
)
from metering.selectors.traffic import MinuteSums, traffic
from metering.selectors.usage import (
    UsageFilter,
    UsageGroup,
    UsagePeriod,
    UsageRow,
    UsageSums,
    period_of,
    usage_list,
    usage_total,
)

__all__ = [
    "BudgetStatus",
    "MinuteSums",
    "RequestFilter",
    "SeriesPoint",
    "UsageFilter",
    "UsageGroup",
    "UsagePeriod",
    "UsageRow",
    "UsageSums",
    "account_find",
    "budget_find",
    "budget_status",
    "budgets_by_key",
    "budgets_nearly_spent",
    "budgets_of",
    "key_budgets",
    "key_find",
    "key_names",
    "left_words",
    "member_find",
    "names_of_keys",
    "period_of",
    "request_find",
    "request_is_captured",
    "requests_list",
    "reservations_open",
    "series_devices",
    "series_names",
    "series_points",
    "traffic",
    "usage_list",
    "usage_total",
    "user_find",
]
