"""Responses that clients store: kept whole, continued, deleted after a time."""
