"""Ollama's API: its requests, its lists of models, and its pulls."""
