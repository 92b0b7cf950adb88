"""Ollama's chat, generate, embeddings, lists of models and pulls."""
