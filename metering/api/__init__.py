"""Metering over HTTP: the caller's identity and usage. Routed under ``/api/``."""
