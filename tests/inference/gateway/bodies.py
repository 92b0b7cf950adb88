"""The body that tests of the gateway send where its words do not matter."""

from __future__ import annotations

from typing import Any

QUESTION = "What is the capital of France?"


def ask(**more: Any) -> dict[str, Any]:
    """A chat of one question; ``more`` are further fields, or others in place of these."""
    return {"model": "tiny", "messages": [{"role": "user", "content": QUESTION}], **more}
