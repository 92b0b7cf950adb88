"""The tools of Anthropic's messages, the choice among them, and the messages as turns of one chat
with the marks of ``cache_control`` in it.

    system field, system messages ─▶ one system turn, first
    user turns in a row ─▶ tool results in order, then one user turn

    text | text | image     blocks; | are marks
      at 4   at 9   None    characters of the turn's joined text; None: after the turn

Marks of blocks that are no text, and those of a turn with images, come after their turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from inference.protocol.generation import (
    CacheMark,
    ChatMessage,
    ToolChoice,
    ToolDefinition,
)
from inference.protocol.images import ImageRef
from inference.wire import fields as f
from inference.wire.anthropic.content import (
    ASSISTANT_BLOCKS,
    CACHE_CONTROL,
    USER_BLOCKS,
    Block,
    ToolReference,
    blocks,
    cache_of,
    text_blocks,
    texts_of,
    tool_name,
    type_field,
)
from inference.wire.errors import (
    InvalidRequestError,
    MissingParameterError,
    UnsupportedParameterError,
)
from inference.wire.parts import PART_SEPARATOR, Called, Returned, Thought, parts_with_images

MAX_TOOLS = 1024

TOOL_FIELDS = f.table(
    f.fixed("type", "custom", "only custom tools"),
    f.required("name", tool_name, "1 to 128 letters, digits, _ and -; each name once."),
    f.honoured("description", f.text(), "For the model."),
    f.required("input_schema", f.json_schema, "A JSON schema."),
    f.honoured("strict", f.flag, "true: the input follows the schema exactly, by grammar."),
    CACHE_CONTROL,
    f.neutral("eager_input_streaming", f.flag, "Inputs stream as they are generated, always."),
    f.honoured("defer_loading", f.flag, "true: not offered until a tool_reference names it."),
    f.fixed("allowed_callers", ["direct"], "only the model calls"),
    f.refused("input_examples", "chat templates have no place for them; use the description"),
)


@dataclass(frozen=True, slots=True)
class Tool:
    definition: ToolDefinition
    is_deferred: bool
    cache: str | None


def _tool(value: Any, path: str) -> Tool:
    if isinstance(value, dict) and value.get("type") is not None:
        kind = f.kind_of(value, path)
        if kind != "custom":
            raise UnsupportedParameterError(
                f"{path}.type",
                f"'{f.shown(kind)}' is not a tool this server has; declare custom tools",
            )
    read = TOOL_FIELDS.read(value, path)
    definition = ToolDefinition(
        name=read["name"],
        path=f"{path}.input_schema",
        description=read.get("description"),
        parameters=read["input_schema"],
        strict=read.get("strict", False),
    )
    return Tool(definition, is_deferred=read.get("defer_loading", False), cache=cache_of(read))


def tools(value: Any, path: str) -> list[Tool]:
    read: list[Tool] = f.array(_tool, MAX_TOOLS)(value, path)
    seen: set[str] = set()
    for index, tool in enumerate(read):
        name = tool.definition.name
        if name in seen:
            raise InvalidRequestError(
                f"'{path}[{index}].name' is there twice: '{name}'.", param=f"{path}[{index}].name"
            )
        seen.add(name)
    return read


def offered_tools(
    declared: Iterable[Tool], references: Iterable[ToolReference]
) -> list[ToolDefinition]:
    by_name = {tool.definition.name: tool for tool in declared}
    referenced = set()
    for reference in references:
        if reference.name not in by_name:
            raise InvalidRequestError(
                f"'{reference.path}' is none of 'tools': '{reference.name}'.", param=reference.path
            )
        referenced.add(reference.name)
    return [
        tool.definition
        for name, tool in by_name.items()
        if not tool.is_deferred or name in referenced
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    tool_choice: ToolChoice = field(default_factory=ToolChoice)
    parallel: bool = True


_parallel = f.honoured("disable_parallel_tool_use", f.flag, "true: one call at most.")
CHOICE_FIELDS = {
    "auto": f.table(type_field("auto"), _parallel),
    "any": f.table(type_field("any"), _parallel),
    "tool": f.table(
        type_field("tool"), _parallel, f.required("name", tool_name, "One of the tools.")
    ),
    "none": f.table(type_field("none")),
}


def tool_choice(value: Any, path: str) -> Choice:
    kind = f.kind_of(value, path)
    if kind not in CHOICE_FIELDS:
        known = ", ".join(CHOICE_FIELDS)
        raise InvalidRequestError(f"'{path}.type' must be one of {known}.", param=f"{path}.type")
    read = CHOICE_FIELDS[kind].read(value, path)
    parallel = not read.get("disable_parallel_tool_use", False)
    if kind in ("any", "tool"):
        required_choice = ToolChoice(mode="required", name=read.get("name"))
        return Choice(tool_choice=required_choice, parallel=parallel)
    return Choice(
        tool_choice=ToolChoice(mode="none" if kind == "none" else "auto"), parallel=parallel
    )


def check_choice(choice: ToolChoice, offered: list[ToolDefinition]) -> None:
    if choice.mode != "required":
        return
    if not offered:
        raise InvalidRequestError("'tool_choice' asks for a call without 'tools'.", param="tools")
    if choice.name is not None and choice.name not in {tool.name for tool in offered}:
        raise InvalidRequestError(
            f"'tool_choice.name' is none of the tools offered: '{choice.name}'.",
            param="tool_choice.name",
        )


@dataclass(slots=True)
class MarkedChat:
    messages: list[ChatMessage] = field(default_factory=list)
    marks: list[CacheMark] = field(default_factory=list)

    def add(self, message: ChatMessage, blocks: Sequence[Block]) -> None:
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
    """Yields the characters before each mark (``None``: after the turn) and its time to live."""
    end = 0
    num_texts = 0
    for block in blocks:
        if isinstance(block.part, str):
            end += len(block.part) + (len(PART_SEPARATOR) if num_texts else 0)
            num_texts += 1
        if block.cache is not None:
            yield (end if isinstance(block.part, str) else None), block.cache


MAX_MESSAGES = 100_000
SYSTEM_SEPARATOR = "\n\n"
BILLING_MARK = "x-anthropic-billing-header:"
"""Claude Code's first system block, for the vendor's accounting, which that API removes. Left in,
it would be text for the model that changes with the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    role: str
    blocks: tuple[Block, ...]
    is_passing: bool = False
    """A system turn that stops counting once the user speaks again."""


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


def system(value: Any, path: str) -> tuple[Block, ...]:
    if isinstance(value, list) and value and _is_billing(value[0]):
        value = value[1:]
    return text_blocks(value, path)


def _is_billing(block: Any) -> bool:
    block_text = block.get("text") if isinstance(block, dict) else None
    return isinstance(block_text, str) and block_text.startswith(BILLING_MARK)


def chat_messages(turns: list[Turn], system_blocks: Sequence[Block]) -> MarkedChat:
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
            yield from block.references


def _system_texts(turns: list[Turn]) -> Iterator[str]:
    last_user = max((i for i, turn in enumerate(turns) if turn.role == "user"), default=-1)
    for index, turn in enumerate(turns):
        if turn.role == "system" and not (turn.is_passing and index < last_user):
            yield texts_of(turn.blocks)


def _user_messages(
    content: Iterable[Block], open_ids: set[str]
) -> Iterator[tuple[ChatMessage, Sequence[Block]]]:
    rest = []
    for block in content:
        if not isinstance(block.part, Returned):
            rest.append(block)
            continue
        call_id = block.part.call_id
        if call_id not in open_ids:
            raise InvalidRequestError(
                f"'{block.path}' is no tool_use before it that has no result yet: '{call_id}'.",
                param=block.path,
            )
        open_ids.remove(call_id)
        yield block.part.message, (block,)
    if rest:
        images = parts_with_images(
            block.part for block in rest if isinstance(block.part, str | ImageRef)
        )
        yield ChatMessage(role="user", content=texts_of(rest), parts=images), rest


def _assistant_message(content: list[Block]) -> ChatMessage:
    parts = [block.part for block in content]
    calls = [part.call for part in parts if isinstance(part, Called)]
    thoughts = [part.text for part in parts if isinstance(part, Thought) and part.text]
    has_text = any(isinstance(part, str) for part in parts)
    return ChatMessage(
        role="assistant",
        content=texts_of(content) if has_text or not calls else None,
        tool_calls=calls,
        reasoning=PART_SEPARATOR.join(thoughts) or None,
    )
