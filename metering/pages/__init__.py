"""The pages of members: usage, keys, requests and series; operators see those of all accounts.
Templates over the selectors; writes through ``metering.services``.
"""
