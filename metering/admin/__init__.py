"""The operator's console for accounts, keys, budgets and the ledger. Every write calls a
service."""

from metering.admin.account import AccountAdmin
from metering.admin.budget import BudgetAdmin
from metering.admin.key import ApiKeyAdmin
from metering.admin.records import AuditEntryAdmin, LedgerEntryAdmin, UsageHourAdmin

__all__ = [
    "AccountAdmin",
    "ApiKeyAdmin",
    "AuditEntryAdmin",
    "BudgetAdmin",
    "LedgerEntryAdmin",
    "UsageHourAdmin",
]
