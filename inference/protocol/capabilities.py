"""What models can do, as lists for clients name it. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def with_text(capabilities: Sequence[str]) -> tuple[str, ...]:
    """Puts the original's ``text`` before them where the model answers in words."""
    answers = "chat" in capabilities or "completions" in capabilities
    return ("text", *capabilities) if answers else tuple(capabilities)
