"""``/usage/``: a member's usage, remaining budgets and keys; for operators the same over all
accounts. Templates over ``metering.selectors``; writes through ``metering.services``."""
