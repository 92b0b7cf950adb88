"""What one token of an answer is."""

from __future__ import annotations

from enum import Enum


class TokenKind(Enum):
    OPENS = "opens"
    THOUGHT = "thought"
    CLOSES = "closes"
    ANSWER = "answer"
    MARKUP = "markup"
    """Belongs to the format, between messages; it is not shown."""
