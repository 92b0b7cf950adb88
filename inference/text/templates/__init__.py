"""Conversations to prompts, by a model's chat template."""
