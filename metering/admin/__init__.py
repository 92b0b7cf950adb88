"""The operator's console for people, accounts, keys, budgets and the ledger."""

from metering.admin import account, inlines, key, people, records

__all__ = ["account", "inlines", "key", "people", "records"]
