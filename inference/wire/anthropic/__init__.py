"""Anthropic's messages and their batches."""
