"""The bodies that tests of the gateway send where their words do not matter. ``more`` are further
fields, or others in place of these."""

from __future__ import annotations

from typing import Any

QUESTION = "What is the capital of France?"


def chat_body(*image_urls: str, **more: Any) -> dict[str, Any]:
    """A chat of one question, with images."""
    content: Any = QUESTION
    if image_urls:
        images = [{"type": "image_url", "image_url": {"url": url}} for url in image_urls]
        content = [{"type": "text", "text": QUESTION}, *images]
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], **more}


def responses_body(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "input": QUESTION, **more}


def embeddings_body(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "input": ["one", "two"], **more}
