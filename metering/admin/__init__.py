"""The operator's console for people, accounts, keys, budgets and the ledger. Every write but
Django's own of people calls a service."""

from metering.admin import account, inlines, key, records, user

__all__ = ["account", "inlines", "key", "records", "user"]
