"""Logging in and out, and how many attempts are accepted."""
