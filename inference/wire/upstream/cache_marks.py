"""The cache marks of an Anthropic client as ``cache_control`` of the blocks that its upstream is
sent. A mark inside a turn's text cuts the text in two blocks, as they came. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from inference.protocol.generation import CacheMark
from inference.wire.common.parts import PART_SEPARATOR

Block = dict[str, Any]


class Marks:
    """``of_request``: the mark of the whole request; ``None``: it has none."""

    def __init__(self, marks: Iterable[CacheMark]) -> None:
        self.of_request: Block | None = None
        self._of_tools: dict[int, Block] = {}
        self._of_turns: dict[int, list[CacheMark]] = defaultdict(list)
        for mark in marks:
            if mark.message is not None:
                self._of_turns[mark.message].append(mark)
            elif mark.tool is not None:
                self._of_tools[mark.tool] = _control(mark)
            else:
                self.of_request = _control(mark)

    def has_any(self, message: int) -> bool:
        """Whether that message of the chat has a mark."""
        return message in self._of_turns

    def on_tools(self, tools: list[Block]) -> list[Block]:
        """Changes them."""
        for index, control in self._of_tools.items():
            tools[index]["cache_control"] = control
        return tools

    def on_turn(self, message: int, blocks: list[Block]) -> list[Block]:
        """The blocks of that message with its marks: changes them. ``blocks`` without any stay so,
        and so do its texts of white space, which that API does not cache."""
        if message not in self._of_turns or not blocks:
            return blocks
        marks = self._of_turns[message]
        if blocks[0]["type"] == "text":
            inside = {mark.at: _control(mark) for mark in marks if mark.at is not None}
            blocks = _cut(blocks[0]["text"], inside) + blocks[1:]
        for mark in marks:
            if mark.at is None and blocks[-1].get("text", "x").strip():
                blocks[-1]["cache_control"] = _control(mark)
        return blocks


def _cut(text: str, inside: dict[int, Block]) -> list[Block]:
    """``inside``: marks by the characters before them."""
    blocks: list[Block] = []
    start = 0
    for at in sorted(inside):
        if text[start:at].strip() and text[at:].strip():
            block = {"type": "text", "text": text[start:at], "cache_control": inside[at]}
            blocks.append(block)
            start = at + len(PART_SEPARATOR) if text.startswith(PART_SEPARATOR, at) else at
    return [*blocks, {"type": "text", "text": text[start:]}]


def _control(mark: CacheMark) -> Block:
    return {"type": "ephemeral", **({"ttl": mark.ttl} if mark.ttl else {})}
