"""OpenAI's Responses: requests, items, events, and stored objects."""
