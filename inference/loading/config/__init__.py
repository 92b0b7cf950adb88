"""What a model is, read from its files' configs and checked."""
