"""Memory and time that a model's layers take, from its config and file headers. No torch."""
