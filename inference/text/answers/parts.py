"""The parts of an answer's text, and the kinds of its tokens.

    text pieces ─▶ parser.feed(text) … parser.flush() ─▶ parts, in order

However the text is cut into pieces, the parts of one kind concatenate to the same. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text for the client to read; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A tool call begins; its name is whole. The call before it, if any, is complete."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of the running call's arguments; never empty. A call's pieces concatenate to one
    valid JSON object, as soon as the next call starts or the parser is flushed. Only where they are
    streamed under a grammar may the answer's end cut them off."""

    fragment: str


Part = TextPart | CallStarted | CallArguments


class TokenKind(Enum):
    OPENS = "opens"
    THOUGHT = "thought"
    CLOSES = "closes"
    ANSWER = "answer"
    MARKUP = "markup"
    """Belongs to the format, between messages; it is not shown."""


Run = tuple[TokenKind, str]
"""Text of one kind; of a marker, how it is written."""
