"""Accounts, keys and budgets. Empty until its issue: the spine serves loopback without keys."""
