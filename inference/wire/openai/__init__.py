"""OpenAI's dialects, and their shared parts."""
