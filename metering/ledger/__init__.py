"""Budgets, reservations and the ledger: arithmetic, writer, spool, and dead gateways' requests."""
