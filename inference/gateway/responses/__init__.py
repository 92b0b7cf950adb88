"""OpenAI's Responses: made, streamed, kept, continued over a WebSocket or in the background."""
