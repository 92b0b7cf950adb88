"""What a model's layers take of memory and time, from its config and file headers. No torch."""
