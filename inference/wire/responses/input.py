"""The input items of a Responses request, which this server's output items may be.

Source: https://platform.openai.com/docs/api-reference/responses/create#responses-create-input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from inference.protocol.generation import ChatMessage, ToolCall
from inference.wire import fields as f
from inference.wire.errors import (
    InvalidRequestError,
    MissingParameterError,
    UnsupportedParameterError,
)
from inference.wire.parts import (
    PART_SEPARATOR,
    Called,
    Part,
    Returned,
    Thought,
    joined_text,
    parts_with_images,
)
from inference.wire.responses.fields import (
    Content,
    carried,
    content,
    encrypted_content,
    reasoning_parts,
    summary_parts,
)
from inference.wire.responses.tools import shown_name

ROLES: dict[str, Literal["system", "user", "assistant"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}

SUMMARY_LEAD = "The conversation so far, in short:"


@dataclass(frozen=True, slots=True)
class Message:
    role: Literal["system", "user", "assistant"]
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        return joined_text(self.parts)


@dataclass(frozen=True, slots=True)
class Referred:
    """Replaced by the stored item of that id."""

    id: str
    path: str


@dataclass(frozen=True, slots=True)
class Summarised:
    text: str


TurnPart = Message | Thought | Called | Returned | Referred | Summarised


def chat_messages(parts: Iterable[TurnPart]) -> list[ChatMessage]:
    turns: list[ChatMessage] = []
    for turn in map(_turn, parts):
        if turn is None:
            continue
        last = turns[-1] if turns else None
        if last is not None and _continues(last, turn):
            turns[-1] = _joined_turn(last, turn)
        else:
            turns.append(turn)
    return turns


def _turn(part: TurnPart) -> ChatMessage | None:
    match part:
        case Message(role="assistant"):
            return ChatMessage(role="assistant", content=part.text)
        case Message(role=role):
            return ChatMessage(role=role, content=part.text, parts=parts_with_images(part.parts))
        case Thought(text=thought) if thought:
            return ChatMessage(role="assistant", reasoning=thought)
        case Summarised(text=summary):
            return ChatMessage(role="assistant", content=f"{SUMMARY_LEAD}\n\n{summary}")
        case Called(call=call):
            return ChatMessage(role="assistant", tool_calls=[call])
        case Returned():
            return part.message
    return None


def _continues(last: ChatMessage, more: ChatMessage) -> bool:
    """A turn is thought, then text, then calls; another order begins a new turn."""
    if not last.role == more.role == "assistant":
        return False
    is_only_thought = last.content is None and not last.tool_calls and last.reasoning is not None
    return bool(more.tool_calls) or is_only_thought


def _joined_turn(last: ChatMessage, more: ChatMessage) -> ChatMessage:
    thoughts = [turn.reasoning for turn in (last, more) if turn.reasoning is not None]
    return ChatMessage(
        role="assistant",
        content=last.content if more.content is None else more.content,
        tool_calls=[*last.tool_calls, *more.tool_calls],
        reasoning=PART_SEPARATOR.join(thoughts) if thoughts else None,
    )


def earlier_turns(messages: Sequence[ChatMessage]) -> list[int]:
    """The number of messages in the first turn, the first two, … all but the last."""
    begins = [index for index, message in enumerate(messages) if message.role == "user"]
    return begins[1:]


MAX_ID_CHARS = 256
MAX_ITEMS = 10_000

_string = f.text()
_id_text = f.text(MAX_ID_CHARS, min_chars=1)


@dataclass(frozen=True, slots=True)
class InputItem:
    """``object`` is listed by the API; its id is ``None`` until the request has one."""

    object: dict[str, Any]
    part: TurnPart


_type = f.honoured("type", _string, "message, function_call, function_call_output, reasoning …")
_id = f.honoured("id", _id_text, "Kept; made when left out.")
_call_id = f.required("call_id", _id_text, "Which call.")
_status = f.honoured(
    "status",
    f.one_of("completed", "incomplete", "in_progress"),
    "Listed as given.",
)
_caller = f.neutral(
    "caller", f.only({"type": "direct"}, reason="there are no programs"), '{"type": "direct"}'
)

ITEM_FIELDS = {
    "message": f.table(
        _type,
        _id,
        _status,
        f.required("role", f.one_of(*ROLES), "system, developer, user or assistant."),
        f.required("content", content, "A string or parts; images only of the user."),
        f.neutral(
            "phase",
            f.one_of("commentary", "final_answer"),
            "A label that changes nothing.",
        ),
    ),
    "function_call": f.table(
        _type,
        _id,
        _status,
        _call_id,
        f.required("name", f.text(MAX_ID_CHARS, min_chars=1), "The function's name."),
        f.required("arguments", _string, "JSON text, as the model gave it."),
        f.honoured("namespace", f.text(MAX_ID_CHARS, min_chars=1), "Of the function."),
        f.fixed("async", False, "calls are not asynchronous"),
        _caller,
    ),
    "function_call_output": f.table(
        _type,
        _id,
        _status,
        _call_id,
        f.required("output", content, "A string, or text and image parts."),
        f.neutral("name", f.text(MAX_ID_CHARS), "The call's id identifies the function."),
        f.neutral("namespace", f.text(MAX_ID_CHARS), "The call's id identifies the function."),
        _caller,
    ),
    "reasoning": f.table(
        _type,
        _id,
        _status,
        f.honoured("content", reasoning_parts, "reasoning_text parts."),
        f.honoured("encrypted_content", encrypted_content, "As this server gave it."),
        f.honoured("summary", summary_parts, "Read where there is nothing more exact."),
    ),
    "compaction": f.table(
        _type,
        _id,
        f.required("encrypted_content", encrypted_content, "As this server gave it: a summary."),
        f.neutral("created_by", f.text(MAX_ID_CHARS), "A label."),
    ),
    "item_reference": f.table(
        _type, f.required("id", _id_text, "Of an item of a stored response.")
    ),
}


def items(value: Any, path: str) -> list[InputItem]:
    if isinstance(value, str):
        return [_message({"role": "user", "content": content(value, path)}, path)]
    if not isinstance(value, list):
        raise f.wrong_type(path, "a string or an array of items", value)
    if not 1 <= len(value) <= MAX_ITEMS:
        raise InvalidRequestError(
            f"'{path}' must have from 1 to {MAX_ITEMS} items; it has {len(value)}.", param=path
        )
    read = [_item(given, f"{path}[{index}]") for index, given in enumerate(value)]
    _refuse_doubles(read, path)
    return read


def _item(value: Any, path: str) -> InputItem:
    if not isinstance(value, dict):
        raise f.wrong_type(path, "an object", value)
    kind = _kind(value, path)
    if kind not in ITEM_FIELDS:
        raise UnsupportedParameterError(f"{path}.type", f"'{f.shown(kind)}' items are not read")
    read = f.read_fields(value, ITEM_FIELDS[kind], path=f"{path}.")
    match kind:
        case "message":
            return _message(read, path)
        case "function_call":
            return _call(read)
        case "function_call_output":
            output: Content = read["output"]
            given = {"call_id": read["call_id"], "output": output.as_given}
            return _made(kind, read, given, Returned(read["call_id"], output.parts))
        case "reasoning":
            return _reasoning(read)
        case "compaction":
            summary: str = read["encrypted_content"]
            return _made(kind, read, {"encrypted_content": carried(summary)}, Summarised(summary))
    reference = {"type": "item_reference", "id": read["id"]}
    return InputItem(reference, Referred(read["id"], path))


def _made(kind: str, read: dict[str, Any], given: dict[str, Any], part: TurnPart) -> InputItem:
    head = {"id": read.get("id"), "type": kind, "status": read.get("status", "completed")}
    return InputItem({**head, **given}, part)


def _kind(value: dict[str, Any], path: str) -> str:
    given = value.get("type")
    if given is not None:
        return _string(given, f"{path}.type")
    if "role" in value:
        return "message"
    if "id" in value:
        return "item_reference"
    raise MissingParameterError(f"{path}.type")


def _message(read: dict[str, Any], path: str) -> InputItem:
    role = read["role"]
    given: Content = read["content"]
    if not given.parts and role != "assistant":
        # Clients send answers without text back like this.
        raise InvalidRequestError(f"'{path}.content' must not be empty.", param=f"{path}.content")
    if given.has_images and role != "user":
        raise UnsupportedParameterError(f"{path}.content", "only the user's messages have images")
    content_type = "output_text" if role == "assistant" else "input_text"
    named = {"role": role, "content": given.objects(content_type)}
    return _made("message", read, named, Message(ROLES[role], given.parts))


def _call(read: dict[str, Any]) -> InputItem:
    given = ("call_id", "namespace", "name", "arguments")
    named: dict[str, Any] = {field: read[field] for field in given if field in read}
    name = shown_name(read["name"], read.get("namespace"))
    call = ToolCall(id=read["call_id"], name=name, arguments=read["arguments"])
    return _made("function_call", read, named, Called(call))


def _reasoning(read: dict[str, Any]) -> InputItem:
    """The text takes precedence over its encoded form, and that over a summary."""
    texts = read.get("content") or [read.get("encrypted_content") or ""]
    thought = PART_SEPARATOR.join(texts) or PART_SEPARATOR.join(read.get("summary", []))
    named = {
        "summary": [{"type": "summary_text", "text": part} for part in read.get("summary", [])],
        "content": [{"type": "reasoning_text", "text": part} for part in texts if part],
    }
    return _made("reasoning", read, named, Thought(thought))


def _refuse_doubles(read: Iterable[InputItem], path: str) -> None:
    seen = set()
    for index, item in enumerate(read):
        given = item.object["id"]
        if given is not None and given in seen:
            raise InvalidRequestError(
                f"Two items have the id '{f.shown(given)}'.", param=f"{path}[{index}].id"
            )
        seen.add(given)


def check_results(conversation: Sequence[InputItem], num_earlier: int = 0) -> None:
    """``num_earlier``: the items before the request's own."""
    called: set[str] = set()
    for index, item in enumerate(conversation):
        if isinstance(item.part, Called):
            called.add(item.part.call.id)
        elif isinstance(item.part, Returned) and item.part.call_id not in called:
            raise InvalidRequestError(
                f"No tool call found for function call output with call_id "
                f"'{f.shown(item.part.call_id)}'.",
                param=f"input[{index - num_earlier}].call_id",
            )


def resolved(read: Iterable[InputItem], stored: Mapping[str, InputItem]) -> list[InputItem]:
    return [
        _stored_item(item.part, stored) if isinstance(item.part, Referred) else item
        for item in read
    ]


def _stored_item(reference: Referred, stored: Mapping[str, InputItem]) -> InputItem:
    if reference.id not in stored:
        raise InvalidRequestError(
            f"There is no stored item with the id '{f.shown(reference.id)}'. Items are kept only "
            "of responses with 'store' true.",
            param=reference.path,
        )
    return stored[reference.id]


PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "reasoning": "rs",
    "compaction": "cmp",
}


def with_ids(read: Iterable[InputItem], request_id: str) -> list[InputItem]:
    return [
        item if item.object["id"] is not None else _with_id(item, f"{request_id}_i{index}")
        for index, item in enumerate(read)
    ]


def _with_id(item: InputItem, suffix: str) -> InputItem:
    made = f"{PREFIXES[item.object['type']]}_{suffix}"
    return replace(item, object={**item.object, "id": made})
