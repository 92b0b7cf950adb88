"""The operator's console for people, accounts, keys, budgets and the ledger. Every write but
Django's own of people calls a service."""

from metering.admin.account import AccountAdmin
from metering.admin.budget import BudgetAdmin
from metering.admin.key import ApiKeyAdmin
from metering.admin.records import LedgerEntryAdmin, UsageHourAdmin
from metering.admin.user import GroupAdmin, UserAdmin

__all__ = [
    "AccountAdmin",
    "ApiKeyAdmin",
    "BudgetAdmin",
    "GroupAdmin",
    "LedgerEntryAdmin",
    "UsageHourAdmin",
    "UserAdmin",
]
