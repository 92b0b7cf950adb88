"""Limits per minute and at once, counted in Redis."""
