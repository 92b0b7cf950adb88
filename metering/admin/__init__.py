"""The operator's console for people, accounts, keys, budgets and the ledger."""

from metering.admin import account, inlines, key, records, user

__all__ = ["account", "inlines", "key", "records", "user"]
