"""The operator's console for people, accounts, keys, budgets and the ledger."""

from metering.admin import accounts, inlines, people

__all__ = ["accounts", "inlines", "people"]
