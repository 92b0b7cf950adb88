"""The engine of an embedding model: its queue, its steps, its load."""
