"""Embedding models: what their files hold, and how they are opened."""
