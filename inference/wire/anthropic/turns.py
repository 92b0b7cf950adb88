"""Anthropic's messages as turns of one chat, and the marks of ``cache_control`` in it.

    system field, system messages ─▶ one system turn, first
    user turns in a row ─▶ tool results in order, then one user turn
    assistant turns in a row ─▶ one assistant turn: reasoning, text, tool calls

    text | text | image     blocks; | are marks
      at 4   at 9   None    characters of the turn's joined text; None: after the turn

Marks of blocks that are no text, and those of a turn with images, come after their turn. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from inference.protocol.generation import CacheMark, ChatMessage, ToolCall
from inference.wire import fields as f
from inference.wire.anthropic.content import (
    ASSISTANT_BLOCKS,
    USER_BLOCKS,
    Block,
    Image,
    Redacted,
    Text,
    ToolResult,
    blocks,
    text_blocks,
    texts_of,
)
from inference.wire.anthropic.fields import Tool, ToolReference
from inference.wire.errors import InvalidRequestError, MissingParameterError
from inference.wire.parts import PART_SEPARATOR, Called, Thought, parts_with_images


@dataclass(slots=True)
class MarkedChat:
    messages: list[ChatMessage] = field(default_factory=list)
    marks: list[CacheMark] = field(default_factory=list)

    def add(self, message: ChatMessage, blocks: Sequence[Block]) -> None:
        """``blocks``: those of this turn, in their order."""
        index = len(self.messages)
        self.messages.append(message)
        for at, ttl in _places(blocks):
            has_place = at is not None and not message.parts and at < len(message.content or "")
            self.marks.append(CacheMark(message=index, at=at if has_place else None, ttl=ttl))


def marks_of_tools(offered: Iterable[str], declared: Iterable[Tool]) -> list[CacheMark]:
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


MAX_MESSAGES = 100_000
SYSTEM_SEPARATOR = "\n\n"
BILLING_MARK = "x-anthropic-billing-header:"
"""Opens a first system block that Claude Code writes for the vendor's accounting. That API takes it
out of the prompt; left in, it would be text for the model that changes with the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    role: str
    blocks: tuple[Block, ...]
    is_passing: bool = False
    """A system turn that no longer counts once the user has spoken again."""


_role = f.honoured("role", f.one_of("user", "assistant", "system"), "user, assistant or system.")
MESSAGE_FIELDS = {
    "user": f.table(_role, f.required("content", blocks(USER_BLOCKS), "A string or blocks.")),
    "assistant": f.table(
        _role, f.required("content", blocks(ASSISTANT_BLOCKS), "A string or blocks.")
    ),
    "system": f.table(
        _role,
        f.required("content", text_blocks, "A string or text blocks."),
        f.honoured("clear_at", f.one_of("never", "next_user_message"), "Until when it counts."),
        f.refused("output_config", "it is given once, for the request"),
    ),
}


def messages(value: Any, path: str) -> list[Turn]:
    return f.array(_turn, MAX_MESSAGES, min_items=1)(value, path)


def _turn(value: Any, path: str) -> Turn:
    if not isinstance(value, dict):
        raise f.wrong_type(path, "an object", value)
    given = value.get("role")
    if given is None:
        raise MissingParameterError(f"{path}.role")
    role: str = _role.check(given, f"{path}.role")
    read = f.read_fields(value, MESSAGE_FIELDS[role], path=f"{path}.")
    return Turn(
        role=role,
        blocks=read["content"],
        is_passing=read.get("clear_at") == "next_user_message",
    )


def system(value: Any, path: str) -> tuple[Text, ...]:
    if isinstance(value, list) and value and _is_billing(value[0]):
        value = value[1:]
    return text_blocks(value, path)


def _is_billing(block: Any) -> bool:
    block_text = block.get("text") if isinstance(block, dict) else None
    return isinstance(block_text, str) and block_text.startswith(BILLING_MARK)


def chat_messages(turns: list[Turn], system_blocks: Sequence[Text]) -> MarkedChat:
    """Raises ``InvalidRequestError`` for a chat without a turn of the user, and for results of
    calls that the chat does not have."""
    dialogue = [turn for turn in turns if turn.role != "system"]
    if all(turn.role != "user" for turn in dialogue):
        raise InvalidRequestError("'messages' must have a turn of the user.", param="messages")
    chat = MarkedChat()
    system_texts = [texts_of(system_blocks), *_system_texts(turns)]
    if first := SYSTEM_SEPARATOR.join([one for one in system_texts if one]):
        chat.add(ChatMessage(role="system", content=first), system_blocks)
    open_ids: set[str] = set()
    for role, in_a_row in groupby(dialogue, key=lambda turn: turn.role):
        content = [block for turn in in_a_row for block in turn.blocks]
        if role == "user":
            for message, its_blocks in _user_messages(content, open_ids):
                chat.add(message, its_blocks)
        else:
            message = _assistant_message(content)
            chat.add(message, content)
            open_ids.update(call.id for call in message.tool_calls)
    return chat


def tool_references(turns: Iterable[Turn]) -> Iterator[ToolReference]:
    for turn in turns:
        for block in turn.blocks:
            if isinstance(block, ToolResult):
                yield from block.references


def _system_texts(turns: list[Turn]) -> Iterator[str]:
    last_user = max((i for i, turn in enumerate(turns) if turn.role == "user"), default=-1)
    for index, turn in enumerate(turns):
        if turn.role == "system" and not (turn.is_passing and index < last_user):
            yield texts_of(turn.blocks)


def _user_messages(
    content: Iterable[Block], open_ids: set[str]
) -> Iterator[tuple[ChatMessage, Sequence[Block]]]:
    """The messages with their blocks. Removes answered ids from ``open_ids``."""
    rest = []
    for block in content:
        if not isinstance(block, ToolResult):
            rest.append(block)
            continue
        call_id = block.returned.call_id
        if call_id not in open_ids:
            raise InvalidRequestError(
                f"'{block.path}' is no tool_use before it that has no result yet: '{call_id}'.",
                param=block.path,
            )
        open_ids.remove(call_id)
        yield block.returned.message, (block,)
    if rest:
        images = parts_with_images(
            block.text if isinstance(block, Text) else block.image
            for block in rest
            if isinstance(block, Text | Image)
        )
        yield ChatMessage(role="user", content=texts_of(rest), parts=images), rest


def _assistant_message(content: list[Block]) -> ChatMessage:
    calls: list[ToolCall] = [block.call for block in content if isinstance(block, Called)]
    thoughts = [block.text for block in content if isinstance(block, Thought) and block.text]
    has_text = any(isinstance(block, Text) for block in content)
    return ChatMessage(
        role="assistant",
        content=texts_of(content) if has_text or not calls else None,
        tool_calls=calls,
        reasoning=PART_SEPARATOR.join(thoughts) or None,
    )
