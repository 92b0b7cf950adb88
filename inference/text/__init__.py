"""Converts between text and token ids. No torch, no Django."""
