"""OpenAI's Responses: requests, items, events, and the objects that are kept."""
