"""One serve: its data directory and database, its start, step by step, and until it is ready."""
