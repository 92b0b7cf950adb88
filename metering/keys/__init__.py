"""API keys: how they look, who holds which, when each was used."""
