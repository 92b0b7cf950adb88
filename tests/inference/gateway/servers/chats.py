"""Chats with the default model."""

from __future__ import annotations

MODEL = "smollm2-135m-instruct"
MAX_BODY_BYTES = 50_000
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
CHAT = "/v1/chat/completions"
