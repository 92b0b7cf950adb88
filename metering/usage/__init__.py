"""``/usage/``: what a member has used and may still use, and their keys; for operators the same
over all accounts. Templates over ``metering.selectors``; writes through ``metering.services``."""
