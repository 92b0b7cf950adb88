"""Ollama's chat, generate, lists of models and pulls."""
