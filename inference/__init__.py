"""From a client's bytes to a model's tokens and back."""
