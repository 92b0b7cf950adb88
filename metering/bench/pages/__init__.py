"""The bench's pages: what a reader of results looks at. Routed under ``/bench/``."""
