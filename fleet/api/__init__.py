"""The fleet over HTTP, under ``/api/``. Views call selectors and services; commands call views."""
