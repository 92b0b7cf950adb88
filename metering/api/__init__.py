"""Metering over HTTP: who one is, and what was used. Routed under ``/api/``."""
