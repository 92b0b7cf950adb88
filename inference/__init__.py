"""Turns a client's bytes into a model's tokens and back."""
