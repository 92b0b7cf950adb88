"""The marks of a client's ``cache_control``, by their places in the chat that its blocks become.

    text | text | image     blocks; | are marks
      at 4   at 9   None    characters of the turn's joined text; None: after the turn

Marks of blocks that are no text, and those of a turn with images, stand after their turn. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from inference.protocol.generation import CacheMark, ChatMessage
from inference.wire.anthropic.content import Block, Redacted, Text
from inference.wire.anthropic.tools import Tool
from inference.wire.common.parts import PART_SEPARATOR, Thought


@dataclass(slots=True)
class MarkedChat:
    """Turns as they are added, and the marks of their blocks."""

    messages: list[ChatMessage] = field(default_factory=list)
    marks: list[CacheMark] = field(default_factory=list)

    def add(self, message: ChatMessage, blocks: Sequence[Block]) -> None:
        """``blocks``: those that became this turn, in their order."""
        index = len(self.messages)
        self.messages.append(message)
        for at, ttl in _places(blocks):
            has_place = at is not None and not message.parts and at < len(message.content or "")
            self.marks.append(CacheMark(message=index, at=at if has_place else None, ttl=ttl))

    def without_last(self) -> None:
        """Drops the marks of the last turn, which starts the answer."""
        last = len(self.messages) - 1
        self.marks = [mark for mark in self.marks if mark.message != last]


def marks_of_tools(offered: Iterable[str], declared: Iterable[Tool]) -> list[CacheMark]:
    """``offered``: the names of the tools of the chat."""
    caches = {tool.definition.name: tool.cache for tool in declared}
    return [
        CacheMark(tool=index, ttl=ttl)
        for index, name in enumerate(offered)
        if (ttl := caches.get(name)) is not None
    ]


def _places(blocks: Sequence[Block]) -> Iterator[tuple[int | None, str]]:
    """Yields for each mark the characters of text before it and its time to live; no characters: it
    is after no text."""
    end = 0
    num_texts = 0
    for block in blocks:
        if isinstance(block, Thought | Redacted):
            continue
        if isinstance(block, Text):
            end += len(block.text) + (len(PART_SEPARATOR) if num_texts else 0)
            num_texts += 1
        if block.cache is not None:
            yield (end if isinstance(block, Text) else None), block.cache
