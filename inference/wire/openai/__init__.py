"""OpenAI's dialects, and what they have in common."""
