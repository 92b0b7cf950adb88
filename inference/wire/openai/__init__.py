"""OpenAI's chat, completions, batches and passed requests, and their shared parts."""
