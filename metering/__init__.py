"""Accounts, keys, budgets and the ledger."""
