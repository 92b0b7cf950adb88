"""Anthropic's messages, their batches and its list of models."""
