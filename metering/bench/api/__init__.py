"""The bench's results over HTTP, in the original's fields. Routed under ``/api/bench/``."""
