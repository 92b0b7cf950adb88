"""Daphne, its connections and their limits, and which paths are the API's."""
